"""What the compiler did to one function, as text."""

from __future__ import annotations

from typing import Any


def describe(compiled: Any) -> str:
    """Operations after each pass, time of each phase, sizes."""
    lines = ["operations"]
    lines += [f"  {name:<22}{count:>10,}" for name, count in compiled.operations.items()]
    lines += ["of these, at the end"]
    by_count = sorted(compiled.kinds.items(), key=lambda item: -item[1])
    lines += [f"  {name:<22}{count:>10,}" for name, count in by_count[:12]]
    lines += ["seconds"]
    lines += [f"  {name:<22}{seconds:>10.3f}" for name, seconds in compiled.seconds.items()]
    lines += ["size"]
    lines += [f"  {'lanes':<22}{compiled.lanes:>10,}"]
    lines += [f"  {'workspace bytes':<22}{compiled.workspace_bytes:>10,}"]
    lines += [f"  {'object code bytes':<22}{len(compiled.object_code):>10,}"]
    return "\n".join(lines)
