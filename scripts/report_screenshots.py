"""Screenshots of a report as a desktop and a phone show it, where chromium is installed.

    python scripts/report_screenshots.py runs/demo/report.html /tmp

writes report_1280.png and report_390.png there, each of the whole page.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WIDTHS, NARROWEST = (1280, 390), 500  # chromium makes no window that is narrower
HEIGHT = "<script>onload = () => document.title = document.documentElement.scrollHeight</script>"


def chromium(*words: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        command = ["chromium", *FLAGS, f"--user-data-dir={profile}", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def framed(page: Path, width: int, height: int, folder: Path) -> Path:
    """A page that shows another in a frame of this size."""
    path = folder / f"frame_{width}.html"
    frame = f'<iframe src="{page.resolve().as_uri()}" style="border:0;width:{width}px;height:{height}px"></iframe>'
    path.write_text(f'<body style="margin:0">{frame}</body>')
    return path


def height_of(page: Path, width: int, folder: Path) -> int:
    """Height of a page of this width, told by a copy of it."""
    copy = folder / "copy.html"
    inner = page.read_text().replace("</head>", f"{HEIGHT}<style>html {{ width: {width}px }}</style></head>")
    copy.write_text(inner)
    text = chromium(f"--window-size={width},1000", "--virtual-time-budget=5000", "--dump-dom", copy.as_uri())
    return int(re.search(r"<title>(\d+)</title>", text).group(1))  # type: ignore[union-attr]


def main() -> None:
    parser = argparse.ArgumentParser(description="Screenshots of a report.")
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        with tempfile.TemporaryDirectory() as name:
            height = height_of(arguments.page, width, Path(name))
            frame = framed(arguments.page, width, height, Path(name))
            target = arguments.folder / f"{arguments.page.stem}_{width}.png"
            size = f"--window-size={max(width, NARROWEST)},{height}"
            chromium(size, "--allow-file-access-from-files", f"--screenshot={target.resolve()}", frame.as_uri())
            print(f"{target}: {width} x {height}")


if __name__ == "__main__":
    main()
