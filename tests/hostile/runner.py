"""Reads hostile files one after the other, in a process that dies if one takes too much.

Called as `python -m tests.hostile.runner KIND FOLDER [CASE]`: a line before each case, one of JSON after it. A case may
use five seconds of processor time (the system ends the process then), and so many MEGABYTES more than the process had.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
import warnings
from pathlib import Path

SECONDS = 5.0
MEGABYTES = {"robots": 700, "meshes": 700, "logs": 1000}


def virtual_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def read_robot(path: Path) -> str:
    from knuckle.model.load import load

    return "; ".join(str(omission) for omission in load(path, strict=False)[1])


def read_log(path: Path) -> str:
    from knuckle import robots
    from knuckle.sysid.readers import read_recordings

    return "; ".join(map(str, read_recordings(path, robots.load("double_pendulum")).report))


def cases(kind: str):
    from tests.hostile import log_files, robot_files

    tables = {"robots": robot_files.REFUSED, "meshes": robot_files.LEFT_OUT, "logs": log_files.REFUSED}
    return tables[kind], (read_log if kind == "logs" else read_robot)


def warm_up(kind: str, folder: Path, read) -> None:
    """Imports what readers import, so that limits count what a file costs."""
    from tests.hostile import log_files, robot_files

    folder.mkdir()
    if kind == "logs":
        for name, write in log_files.SOUND.items():
            read(write(folder, name))
    else:
        read(robot_files.urdf(folder))
        read(robot_files.mjcf(folder))
        read(robot_files.with_mesh(folder, "m.stl", robot_files.stl(1)))


def main(kind: str, folder: Path, only: str | None = None) -> None:
    table, read = cases(kind)
    table = {name: case for name, case in table.items() if only in (None, name)}
    warnings.simplefilter("ignore")
    warm_up(kind, folder / "warm", read)
    for number, (name, (write, _)) in enumerate(table.items()):
        print(f"begin {name}", flush=True)
        place = folder / f"case{number}" / "inside"
        place.mkdir(parents=True)
        path = write(place)
        unlimited = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (virtual_bytes() + (MEGABYTES[kind] << 20), unlimited[1]))
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        begin = time.process_time()
        try:
            found = {"error": None, "message": read(path)}
        except BaseException as error:
            mro = [base.__name__ for base in type(error).__mro__]
            found = {"error": type(error).__name__, "value_error": "ValueError" in mro, "message": str(error)}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, unlimited)
        found |= {"seconds": time.process_time() - begin, "length": len(found["message"]), "name": name}
        found["message"] = found["message"][:20_000]
        print(json.dumps(found), flush=True)
        for item in place.iterdir():
            item.unlink()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
