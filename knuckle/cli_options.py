"""The options of `knuckle fit`: their names, what they say, and the groups in which its help shows them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from knuckle.cli_common import BY_FILE, FLOATING, FORCE, REPAIR_INERTIA, ROBOT_OR_HYBRID, Method, Touching, plain

ROBOT, LOGS, WHAT, NETWORKS = "Robot and simulation", "Logs", "What is fitted", "Networks"
COMPARED, SEARCH, SURE, RESULTS = "How it is compared", "Search", "How sure", "Results"


class Shooting(StrEnum):
    """Losses by the names of the command line."""

    AUTO = "auto"
    MULTIPLE = "multiple"
    SINGLE = "single"
    ONE_STEP = "one-step"
    TORQUE = "torque"


class Weighed(StrEnum):
    """What a measurement far off counts, by the names of the command line."""

    SQUARES = "squares"
    HUBER = "huber"
    SOFT_L1 = "soft-l1"
    CAUCHY = "cauchy"


class Driven(StrEnum):
    """What controls do between samples."""

    HELD = "held"
    LINEAR = "linear"


class Angles(StrEnum):
    """Units of angles."""

    RAD = "rad"
    DEG = "deg"


class Order(StrEnum):
    """Orders of a quaternion's entries."""

    WXYZ = "wxyz"
    XYZW = "xyzw"


class Late(StrEnum):
    """What may be late."""

    SENSOR = "sensor"
    ACTUATOR = "actuator"


class Restarting(StrEnum):
    """Where searches of basin hopping begin."""

    BEST = "best"
    ANYWHERE = "anywhere"


class Searching(StrEnum):
    """Searches by the names of the command line."""

    LOCAL = "local"
    BASIN_HOPPING = "basin-hopping"
    POPULATION = "population"


class Solving(StrEnum):
    """Local solvers by the names of the command line."""

    LEVENBERG_MARQUARDT = "levenberg-marquardt"
    LBFGSB = "lbfgsb"
    ADAM = "adam"


def _option(panel: str, help: str, *names: str, metavar: str | None = None):
    return typer.Option(*names, help=plain(help), rich_help_panel=panel, metavar=metavar)


Robot = Annotated[str, typer.Argument(help=ROBOT_OR_HYBRID + " Networks of the latter go on from their weights.")]
Logs = Annotated[list[str], typer.Argument(help="Logs (CSV, NPZ, HDF5, Parquet, MCAP, ROS bags) or folders.")]

Floating = Annotated[bool | None, _option(ROBOT, FLOATING, "--floating/--fixed")]
RepairInertia = Annotated[bool, _option(ROBOT, REPAIR_INERTIA, "--repair-inertia")]
Contact = Annotated[Touching | None, _option(ROBOT, f"How bodies touch; {BY_FILE}.")]
Integrator = Annotated[
    Method | None,
    _option(ROBOT, "How a step is taken; by default as a .knuckle file says, or rk4; with contact semi-implicit."),
]
Step = Annotated[
    float | None, _option(ROBOT, "Longest time step in s; by default a .knuckle file's, or by the robot's springs.")
]

Column = Annotated[
    list[str] | None,
    _option(
        LOGS,
        "What a column is, such as 'enc_a=q shoulder [deg]'; several by a range counted from 1, both ends included, or "
        "a pattern: 'q=2:8', 'q=joint_*_pos'; again for more.",
        metavar="NAME=MEANING",
    ),
]
Ignore = Annotated[
    list[str] | None, _option(LOGS, "Columns or topics to leave out, such as 'cam_*'; again for more.", metavar="NAME")
]
Units = Annotated[Angles | None, _option(LOGS, "Of angles without a unit in their header; by default found.")]
Quaternion = Annotated[
    Order | None, _option(LOGS, "Order in columns that do not name the entries of quaternions; by default found.")
]
Rate = Annotated[float | None, _option(LOGS, "Samples per second of logs without times.")]
Shift = Annotated[
    list[str] | None,
    _option(
        LOGS,
        "Move the stamps of a channel, such as 'tau=-0.012' where torques come 12 ms late; again for more.",
        metavar="CHANNEL=SECONDS",
    ),
]
DriveGain = Annotated[
    list[str] | None,
    _option(
        LOGS,
        "Torque per motor current of a joint [N m/A], such as elbow=8.4, where the log has currents; again for more.",
        "--gain",
        metavar="JOINT=VALUE",
    ),
]
Currents = Annotated[bool, _option(LOGS, "Columns of efforts hold motor currents [A].", "--currents")]
MaxBytes = Annotated[
    int | None,
    _option(LOGS, "Refuse files that hold more, unpacked; by default 256 MiB or 200 times the file, at most 2 GiB."),
]
HeldOut = Annotated[
    float | None, _option(LOGS, "Share of the data that the fit does not see, to test it on; by default 0.25.")
]
HeldOutLog = Annotated[
    list[str] | None,
    _option(LOGS, "A log that the fit does not see, in place of a share; again for more.", metavar="LOG"),
]
Changed = Annotated[
    list[str] | None,
    _option(
        LOGS,
        "A log after something changed: measured torques show what (payload, friction, offset); again for more.",
        metavar="LOG",
    ),
]
Load = Annotated[
    list[str] | None,
    _option(
        LOGS,
        "A load of known mass in the logs of --changed, such as hand=2.5: estimates the drive gains.",
        metavar="LINK=KILOGRAMS",
    ),
]

Free = Annotated[
    list[str] | None,
    _option(
        WHAT,
        "Parameters: '*.mass'; with bounds, of which one may be left out: 'elbow.damping=0:0.5'; with how far they may "
        "be from the description (one deviation): '*.com~0.02', '*.mass=0.5:3~0.1'; again for more. none: networks "
        "only. By default masses, centres of mass, inertia, damping and friction. 'knuckle info ROBOT' lists all.",
        metavar="PATTERN",
    ),
]
Offset = Annotated[
    list[str] | None, _option(WHAT, "A channel with an unknown offset, such as q; again for more.", metavar="CHANNEL")
]
Gain = Annotated[
    list[str] | None,
    _option(
        WHAT,
        "A channel with an unknown scale, such as q; or a joint's known torque per current [N m/A], such as elbow=8.4, "
        "where the log has currents; again for more.",
        metavar="CHANNEL|JOINT=VALUE",
    ),
]
Delay = Annotated[list[Late] | None, _option(WHAT, "What may be late, by an unknown time; again for both.")]

Network = Annotated[
    list[str] | None,
    _option(
        NETWORKS,
        "A tap at which a network learns what is left; again for more. At joint/force and joint/passive_force it only "
        "takes energy. 'knuckle info ROBOT' lists all.",
        metavar="TAP",
    ),
]
Hidden = Annotated[str | None, _option(NETWORKS, "Sizes of their hidden layers; by default 6.", metavar="16,16")]
Inputs = Annotated[
    str | None,
    _option(NETWORKS, "Taps that networks read, but for those at joint forces; by default q,qd.", metavar="TAP,TAP"),
]
WeightSpread = Annotated[
    float | None, _option(NETWORKS, "How large weights are expected to be (one deviation); by default 1.")
]
Lasso = Annotated[float | None, _option(NETWORKS, "Pull of single first-layer weights to zero; by default 0.")]
GroupLasso = Annotated[
    float | None, _option(NETWORKS, "Pull to zero of all that leave one input, so that inputs go; by default 0.")
]
Draws = Annotated[int, _option(NETWORKS, "First weights that are tried at most, where some come to a bad place.")]

KeepNetworks = Annotated[
    bool,
    _option(
        NETWORKS,
        "Keep new networks whatever they bring; by default the same is fitted without them too, and they are left out "
        "unless they make the held-out error smaller.",
        "--keep-networks",
    ),
]

Loss = Annotated[
    Shooting,
    _option(
        COMPARED,
        "How simulation and log are compared. auto: where torques of all joints were measured, a regression on them "
        "that roll-outs judge and refine; else multiple shooting. torque: the regression alone.",
    ),
]
Segment = Annotated[
    float | None, _option(COMPARED, "Seconds of a segment in multiple shooting; by default 0.5 or more.")
]
Robust = Annotated[Weighed, _option(COMPARED, "What measurements far off count; squares: all alike.")]
Noise = Annotated[
    list[str] | None,
    _option(
        COMPARED,
        "Deviation of a channel's noise, such as q=1e-3 or q:position=1e-3; by default found; again for more.",
        metavar="CHANNEL[:KIND]=VALUE",
    ),
]
Drive = Annotated[
    Driven | None,
    _option(COMPARED, "What controls do between samples; by default commands are held, measured torques linear."),
]
Observe = Annotated[
    list[str] | None,
    _option(
        COMPARED,
        "What a channel of your own measures: a function(model, state) in a Python file, which is run; again for more.",
        metavar="CHANNEL=FILE.py:FUNCTION",
    ),
]

Search = Annotated[Searching, _option(SEARCH, "From the description only, or many local searches.")]
Restart = Annotated[
    Restarting | None,
    _option(SEARCH, "Where searches of basin hopping begin: around the best so far, or anywhere between the bounds."),
]
Patience = Annotated[int | None, _option(SEARCH, "Rounds without improvement after which a global search ends.")]
Starts = Annotated[int | None, _option(SEARCH, "Local searches of a global one; by default 64.")]
Workers = Annotated[
    int | None, _option(SEARCH, "Processes for a global search; by default one for each processor; 0: this one.")
]
Ray = Annotated[
    str | None, _option(SEARCH, "Address of a Ray cluster for a global search; auto: here.", metavar="ADDRESS")
]
Solver = Annotated[
    Solving | None,
    _option(SEARCH, "By default levenberg-marquardt up to 300 free numbers, lbfgsb beyond, as exact as the data are."),
]
Iterations = Annotated[int | None, _option(SEARCH, "Most steps of --solver in one round (epochs of adam).")]
Batch = Annotated[int | None, _option(SEARCH, "Pieces of a step of --solver adam; by default all.")]
LearningRate = Annotated[float | None, _option(SEARCH, "Of --solver adam; by default 0.001.")]
Seconds = Annotated[
    float | None, _option(SEARCH, "Most time for the whole command, compiling and the report included.")
]
Seed = Annotated[int, _option(SEARCH, "Of the held-out part, of networks and of a global search.")]
Resume = Annotated[bool, _option(SEARCH, "Go on with a fit that was stopped in the folder of --out.", "--resume")]

Posterior = Annotated[int, _option(SURE, "So many samples of what the data leave possible, in posterior.csv.")]
NextExperiment = Annotated[
    Path | None, _option(SURE, "CSV or NPZ file for the motion to record next: it shows what is least known.")
]
NextSpeed = Annotated[
    float | None, _option(SURE, "Largest joint speed of that motion [rad/s or m/s]; else what the robot states.")
]

Folder = Annotated[Path | None, _option(RESULTS, "Folder for results; by default runs/<robot>_fit.", "--out")]
Force = Annotated[bool, _option(RESULTS, FORCE, "--force")]
