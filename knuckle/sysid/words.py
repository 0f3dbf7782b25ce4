"""The words that headers use for times, positions, velocities, torques, controls and poses."""

from __future__ import annotations

import re
from functools import lru_cache

_LOWER = r"[^\W\d_A-Z]"
_WORD = re.compile(rf"[A-Z]?{_LOWER}+|[A-Z]+(?!{_LOWER})|\d+")
_UNIT = re.compile(r"(.*)(?:\[([^\[\]]*)\]|\(([^()]*)\))")
LONGEST = 300  # characters of a name that are looked at


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


POSITION = _words("q qpos pos position positions angle angles theta th encoder enc")
VELOCITY = _words("qd dq qvel qdot vel velocity velocities speed speeds omega dtheta thetadot")
ACCELERATION = _words("qdd ddq qacc qddot acc accel acceleration accelerations ddtheta")
TORQUE = _words("tau torque torques trq effort efforts eff force forces frc moment")
CONTROL = _words(
    "ctrl control controls u cmd command commands commanded action actions act input inputs target "
    "targets desired des setpoint ref reference"
)
CURRENT = _words("current currents i iq amp amps ampere amperes")  # of motors; "current position" is none
WORDS = {"control": CONTROL, "qdd": ACCELERATION, "qd": VELOCITY, "tau": TORQUE, "q": POSITION}
KINDS = frozenset().union(*WORDS.values())
FILLERS = _words(
    "joint joints state states actual measured meas obs observation observations sensor sensors feedback "
    "fb robot data msg field value values forward controller group"
)
TIME = _words("t time times stamp stamps timestamp timestamps clock elapsed seconds secs")
TIME_FILLERS = _words("header log ros record relative rel unix epoch system publish robot sim sample since start")
TIME_UNITS = _words("s sec secs second seconds ms msec millis us usec micros ns nsec nsecs nanos nanosec nanosecs")
EPISODE = _words("episode trial run demo traj trajectory rollout")
EPISODE_FILLERS = _words("index id idx number nr no")
DERIVED = _words("energy kinetic potential total")  # follows from the rest
POSE_WORDS = _words(
    "pose transform body link frame marker position pos p translation t xyz tf vrpn vicon mocap optitrack"
)
ROTATION_WORDS = _words("orientation rotation rot quat quaternion q r")
_DOTS = {"dot": "qd", "ddot": "qdd"}


@lru_cache(maxsize=4096)
def tokens(name: str) -> tuple[str, ...]:
    """Words and numbers of a name in lower case: `qDot_joint1` is qd, joint, 1."""
    words = [word.lower() for word in _WORD.findall(name[:LONGEST].replace("°", " deg ").replace("µ", "u"))]
    joined: list[str] = []
    for word in words:
        if word in _DOTS and joined and joined[-1] in POSITION:
            joined[-1] = _DOTS[word]
        else:
            joined.append(word)
    return tuple(joined)


def title_and_unit(title: str) -> tuple[str, str | None]:
    """`q1 [deg]` is q1 and deg; a number in brackets is an index."""
    match = _UNIT.fullmatch(title.strip()) if len(title) <= LONGEST else None
    if match is None:
        return title, None
    unit = match[2] if match[2] is not None else match[3]
    return (title, None) if unit.strip().isdigit() else (match[1].strip(), unit.strip())


def is_time(leaf: str) -> bool:
    """Whether a name is that of times."""
    title, _ = title_and_unit(leaf)
    words = set(tokens(title))
    return bool(words & TIME) and words <= TIME | TIME_FILLERS | TIME_UNITS | FILLERS


def is_episode(leaf: str) -> bool:
    """Whether a name is that of numbers of episodes."""
    words = set(tokens(leaf))
    return bool(words & EPISODE) and words <= EPISODE | EPISODE_FILLERS


def is_derived(leaf: str) -> bool:
    """Energies, which a simulator writes beside the state."""
    words = set(tokens(title_and_unit(leaf)[0]))
    return bool(words) and words <= DERIVED


def channel_of(words: tuple[str, ...]) -> str | None:
    """The channel that words without a joint's name speak of: none of them, "" for fillers only."""
    rest = [word for word in words if word not in FILLERS]
    if any(word in CURRENT for word in rest):
        others = tuple(word for word in rest if word not in CURRENT)
        named = channel_of(others)
        return "current" if named in ("", "control") else named if "current" in rest else None
    if not all(word in KINDS for word in rest):
        return None
    return next((channel for channel, known in WORDS.items() if any(word in known for word in rest)), "")
