"""Published recordings of real mechanisms, from a folder of the user's: nothing of them comes with the package.

The folder is the one that the environment variable KNUCKLE_DATA names, or `../shared/data` beside the project, or
`~/.cache/knuckle/data`. It holds a folder for each set, whose files are checked against their SHA-256.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from knuckle.sysid.findings import RecordingError
from knuckle.sysid.raw import LIMIT
from knuckle.sysid.read_npz import arrays_of
from knuckle.sysid.recording import Channel, Recording

CUBE_COLUMNS = ("x", "y", "z", "qw", "qx", "qy", "qz", "vx", "vy", "vz", "wx", "wy", "wz")


@dataclass(frozen=True)
class Dataset:
    """Where a set comes from, and what its files must be."""

    name: str
    what: str
    origin: str  # who published it, where, and under which licence
    files: tuple[tuple[str, str], ...]  # name and SHA-256


SETS = {
    "ibm_double_pendulum": Dataset(
        "ibm_double_pendulum",
        "14 runs of a chaotic double pendulum, markers seen by a camera",
        "Asseman, Kornuta, Ozcan: Learning beyond simulated physics (2018), 'Double Pendulum Chaotic' of IBM's Data "
        "Asset eXchange, CDLA-Sharing-1.0; github.com/ibm/double-pendulum-chaotic-dataset",
        (("runs.npz", "8d4e58b7c1836c80066e3f621cfdeee52bfe028ddd716f49dfbe878a66da41ad"),),
    ),
    "dfki_simple_pendulum": Dataset(
        "dfki_simple_pendulum",
        "10 runs of a pendulum driven by a motor, with measured torque",
        "DFKI Robotics Innovation Center, Underactuated Lab, torque-limited simple pendulum, BSD-3-Clause; "
        "github.com/dfki-ric-underactuated-lab/torque_limited_simple_pendulum",
        (
            ("measured.npz", "d3a77844a6440354d2be2b9a18aa95d4cdca1a43db6bc97e7631db3e4c7ff6b1"),
            ("system_identification.txt", "46eb281078d8642ac46ff1292a78eecb0807de838afaad98f1d0379580fd33a5"),
        ),
    ),
    "ur10e": Dataset(
        "ur10e",
        "10 logs of a UR10e arm: positions, velocities, and efforts from motor currents",
        "Mamedov and Mikhel: Practical aspects of model-based collision detection (2020), data of Innopolis University "
        "published with their code for dynamic calibration, converted to CSV; no licence is stated",
        (
            ("20_01_17-p1.csv", "747c9092712c9132fc09e6d9422002f50a53b79357c88f4fb357493b7665762d"),
            ("20_01_17-p2.csv", "95a999b8422717d36d3a69d493c088cbc9483854fa3f1e0bdde16ba7a0306a22"),
            ("20_01_17-p3.csv", "c7ed82b49f108f7167c70331c6c790dc8db398de7cbd8b36b7a6fa796502f58e"),
            ("20_01_22-joint_2.csv", "ba3a27f67d4b82f77cd921a00e0143c01fa3a0b31f178bb7d6c3b0d7208c5501"),
            ("20_02_05-20sec_12harm.csv", "35d7d6ba034f99b17abab6e0018c23d4397affae25d381621de588a1911c0b4a"),
            ("20_02_06-20sec_5harm.csv", "10bc477620c157b322c2a4624c49d2659b08d10f565127ac541d7a695c442154"),
            ("20_02_10-30sec_12harm.csv", "abb3e5c0a801e3bbb193a8df72fb0f60d8b228eedeca95ade63e01ca197a13a8"),
            ("20_02_12-40sec_12harm.csv", "bf2434805b72a4d5b254657f7ee175ccff8f0edc99fb22c6671ea4f6a891d9f4"),
            ("20_02_19_14harm50sec.csv", "8b3f4ab71732023e8c6cf20a857fe5299c02e55dd6c1db339ca71e3d31529373"),
            ("20_02_19_14harm50secLoad.csv", "8b8165c32c2db3e94413f475264c99422311aa5ffa0a6394cd36ce25e285107d"),
            ("ur10e.urdf", "0d2abc6ebc70725c691a35aa6c2d03fd6e8158017a1b7da7a10a3ef52de7b821"),
        ),
    ),
    "contactnets_cube": Dataset(
        "contactnets_cube",
        "400 tosses of an acrylic cube onto a table",
        "Pfrommer, Halm, Posa: ContactNets (2020), BSD-3-Clause; github.com/DAIRLab/contact-nets",
        (("cube_tosses.npz", "c9df68f2dbe522e82e06fd5b6e2ce616b4485d6619a81bcd38a49db044854424"),),
    ),
    "mcube_push": Dataset(
        "mcube_push",
        "70 planar pushes of plates on ABS, with poses of tip and plate and the force between them",
        "Yu, Bauza, Fazeli, Rodriguez: More than a million ways to be pushed (2016), mcube.mit.edu/push-dataset; the "
        "part that the NeuralSim authors use (Apache-2.0)",
        (
            ("trajectories.npz", "00782f02b49d393274783ef9cba0968691d0006e22c060f44e9c873a680d738f"),
            ("index.csv", "5886af3f9757d17e2f24bba0307511da433e9086ba26ed1db206e3fb8aab61ad"),
            ("shapes.json", "38810413755736f009359ebe0db2ee27de2a539b670174f3dcb595e6ac7af20e"),
        ),
    ),
}


def folders() -> list[Path]:
    """Where sets are looked for, in this order."""
    named = os.environ.get("KNUCKLE_DATA")
    if named:
        return [Path(named).expanduser()]
    return [Path(__file__).parents[3] / "shared" / "data", Path("~/.cache/knuckle/data").expanduser()]


def find(name: str) -> Path:
    """The folder of a set whose files are there and are the published ones; else an error that says what to do."""
    if name not in SETS:
        raise ValueError(f"no set {name!r}; there are {', '.join(SETS)}")
    dataset = SETS[name]
    for folder in folders():
        if all((folder / name / file).is_file() for file, _ in dataset.files):
            for file, digest in dataset.files:
                path = folder / name / file
                found = _digest(path, path.stat().st_mtime_ns, path.stat().st_size)
                if found != digest:
                    raise RecordingError(
                        path, f"SHA-256 is {found}, expected {digest}: not the file that was published"
                    )
            return folder / name
    files = ", ".join(file for file, _ in dataset.files)
    looked = ", ".join(str(folder / name) for folder in folders())
    raise FileNotFoundError(
        f"{name} ({dataset.what}) is not there. Published by {dataset.origin}. Put {files} into a folder {name}, and "
        f"set KNUCKLE_DATA to the folder above it. Looked in {looked}"
    )


@lru_cache(maxsize=64)
def _digest(path: Path, changed: int, size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _channel(values: np.ndarray, names: tuple[str, ...]) -> Channel:
    values = np.asarray(values, float)
    return Channel(values, np.isfinite(values), names)


def ibm_double_pendulum() -> list[Recording]:
    """Runs with channel "pixels": x and y of pivot, elbow and tip [pixels], y with opposite sign; about 400 Hz.

    Gravity points along +x: in no other direction is energy kept.
    """
    path = find("ibm_double_pendulum") / "runs.npz"
    arrays = arrays_of(path, LIMIT)
    names = tuple(f"{joint}.{axis}" for joint in ("pivot", "elbow", "tip") for axis in "xy")
    runs = []
    for key in sorted(k for k in arrays if k.startswith("run_")):
        pixels = np.asarray(arrays[key], float) / 5 * [1, -1, 1, -1, 1, -1]
        time = np.arange(len(pixels)) / float(arrays["fps"])
        runs.append(Recording(time, {"pixels": _channel(pixels, names)}, key, str(path)))
    return runs


def dfki_simple_pendulum() -> list[Recording]:
    """Runs with q [rad], qd [rad/s] and tau [N m] of the one joint, "pendulum"."""
    path = find("dfki_simple_pendulum") / "measured.npz"
    arrays = arrays_of(path, LIMIT)
    runs = []
    for key in sorted(k for k in arrays if not k.endswith("#cols")):
        table, columns = np.asarray(arrays[key], float), [str(name) for name in arrays[f"{key}#cols"]]
        at = {title: i for i, title in enumerate(columns)}
        titles = {"q": ("position", "pos"), "qd": ("velocity", "vel"), "tau": ("torque",)}
        places = {channel: next(at[name] for name in names if name in at) for channel, names in titles.items()}
        channels = {channel: _channel(table[:, [j]], ("pendulum",)) for channel, j in places.items()}
        runs.append(Recording(table[:, at["time"]], channels, key, str(path)))
    return runs


def contactnets_cube() -> list[Recording]:
    """Tosses with q and qd of a free joint "cube": velocity in the world, angular velocity in the body; 148 Hz."""
    path = find("contactnets_cube") / "cube_tosses.npz"
    arrays = arrays_of(path, LIMIT)
    states = np.split(np.asarray(arrays["states"], float), arrays["offsets"][1:-1])
    q_names, v_names = (tuple(f"cube.{n}" for n in part) for part in (CUBE_COLUMNS[:7], CUBE_COLUMNS[7:]))
    runs = []
    for number, toss in zip(arrays["toss_id"].tolist(), states, strict=True):
        channels = {"q": _channel(toss[:, :7], q_names), "qd": _channel(toss[:, 7:], v_names)}
        time = np.arange(len(toss)) * float(arrays["dt"])
        runs.append(Recording(time, channels, f"toss_{number:03d}", str(path)))
    return runs


def mcube_push() -> list[Recording]:
    """Pushes on the times of the plate, with channels "object" and "tip" (x, y [m], angle [rad]) and "force" (N, N m).

    The three clocks of a push are brought together by linear interpolation. Forces that the sensor froze (all of rect1)
    are not valid. Names are id, split and shape, such as "040 train ellip1".
    """
    from knuckle.sysid.split import interpolated

    folder = find("mcube_push")
    arrays = arrays_of(folder / "trajectories.npz", LIMIT)
    with (folder / "index.csv").open(newline="") as file:
        index = list(csv.DictReader(file))
    parts = (("tip", "tip_pose", ("x", "y", "angle")), ("force", "ft_wrench", ("fx", "fy", "torque")))
    runs = []
    for row in index:
        push = f"{int(row['id']):03d}"
        plate = arrays[f"{push}_object_pose"]
        time = plate[:, 0]
        poses = np.column_stack([plate[:, 1:3], np.unwrap(plate[:, 3])])
        channels = {"object": _channel(poses, ("x", "y", "angle"))}
        for channel, key, names in parts:
            table = arrays[f"{push}_{key}"]
            found = interpolated(table[:, 0], _channel(table[:, 1:], names), time, channel)
            frozen = channel == "force" and (row["shape"] == "rect1" or float(row["ft_frozen_fraction"]) > 0.5)
            channels[channel] = Channel(found.values, found.valid & (not frozen), names)
        runs.append(Recording(time, channels, f"{push} {row['split']} {row['shape']}", str(folder)))
    return runs


def mcube_shapes() -> dict[str, dict]:
    """Outline [m], mass [kg] and moment of inertia [kg m^2] of each plate."""
    shapes = json.loads((find("mcube_push") / "shapes.json").read_text())
    wanted = {"outline": "mcube_polygon_m", "mass": "mass_kg", "inertia": "inertia_kgm2"}
    return {
        name: {key: shape[source] for key, source in wanted.items()} for name, shape in shapes.items() if name[0] != "_"
    }
