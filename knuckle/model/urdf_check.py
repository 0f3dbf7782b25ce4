"""The grammar of URDF: what a file says that is wrong, what it says beyond URDF, and what is left to read.

yourdfpy gives missing moments of inertia the value 1, takes the first of repeated elements, fails on capsules without
saying where, and skips what it does not know. So the tree is checked first, line by line, and yourdfpy is handed only
what passed.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from knuckle.model.report import Omission
from knuckle.model.xml import line_of

JOINT_TYPES = ("revolute", "continuous", "prismatic", "fixed", "floating", "planar")
SHAPES = ("box", "cylinder", "sphere", "capsule", "mesh")

MAX_LINKS = 5000
MAX_TEXT = 4096  # characters of an attribute
WHITESPACE = " \t\r\n"
NUMBER = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf(?:inity)?|nan)", re.IGNORECASE)

# attribute -> what it holds: text, a count of numbers, "+" positive numbers, "limit" a number that may be infinite,
# "scale" one or three numbers; a mark "!" where it must be there
ATTRIBUTES: dict[str, dict[str, str]] = {
    "robot": {"name": "text", "version": "text"},
    "link": {"name": "text!"},
    "inertial": {},
    "mass": {"value": "1!"},
    "inertia": {
        **dict.fromkeys(("ixx", "ixy", "ixz", "iyy", "iyz", "izz"), "1!"),
        **dict.fromkeys(("iyx", "izx", "izy"), "1"),
    },
    "origin": {"xyz": "3", "rpy": "3"},
    "visual": {"name": "text"},
    "collision": {"name": "text"},
    "geometry": {},
    "box": {"size": "3+!"},
    "cylinder": {"radius": "1+!", "length": "1+!"},
    "sphere": {"radius": "1+!"},
    "capsule": {"radius": "1+!", "length": "1+!"},
    "mesh": {"filename": "text!", "scale": "scale"},
    "material": {"name": "text"},
    "color": {"rgba": "4"},
    "texture": {"filename": "text"},
    "joint": {"name": "text!", "type": "text!"},
    "parent": {"link": "text!"},
    "child": {"link": "text!"},
    "axis": {"xyz": "3!"},
    "limit": {"lower": "limit", "upper": "limit", "effort": "limit", "velocity": "limit"},
    "dynamics": {"damping": "1", "friction": "1"},
    "mimic": {"joint": "text!", "multiplier": "1", "offset": "1"},
    "loop_joint": {"name": "text!", "type": "text!"},
    "link1": {"link": "text!", "xyz": "3", "rpy": "3"},
    "link2": {"link": "text!", "xyz": "3", "rpy": "3"},
    "frame": {"name": "text!", "link": "text!", "xyz": "3", "rpy": "3"},
}

# element -> the elements it may hold: "*" any number, "?" at most one, "1" exactly one
CHILDREN: dict[str, dict[str, str]] = {
    "robot": {"link": "*", "joint": "*", "material": "*", "loop_joint": "*", "frame": "*"},
    "link": {"inertial": "?", "visual": "*", "collision": "*"},
    "inertial": {"origin": "?", "mass": "1", "inertia": "1"},
    "visual": {"origin": "?", "geometry": "1", "material": "?"},
    "collision": {"origin": "?", "geometry": "1", "material": "?"},
    "geometry": dict.fromkeys(SHAPES, "?"),
    "material": {"color": "?", "texture": "?"},
    "joint": {"parent": "1", "child": "1", **dict.fromkeys(("origin", "axis", "limit", "dynamics", "mimic"), "?")},
    "loop_joint": {"link1": "1", "link2": "1", "axis": "?"},
}

BEYOND = {
    "gazebo": "settings for Gazebo are not part of URDF",
    "transmission": "transmissions are not modelled: the control of a joint is its force",
    "safety_controller": "soft limits are not modelled",
    "calibration": "calibration marks have no effect on motion",
    "contact": "contact settings for Bullet are not part of URDF",
    "joint_properties": "not part of URDF, which has <dynamics>",
    "mujoco": "settings for MuJoCo are not part of URDF",
    "texture": "textures are not drawn",
}
CONTAINERS = ("robot", "link", "joint", "inertial")  # where an element that is misplaced was meant to change the motion
MECHANISM = {  # elements that say something about the motion
    *("link", "joint", "inertial", "mass", "inertia", "axis", "limit", "dynamics", "mimic", "parent", "child"),
}
DRAKE = {  # elements of Drake's dialect that say something about the motion
    *("joint", "rotor_inertia", "gear_ratio", "screw_thread_pitch", "linear_bushing_rpy", "ball_constraint", "mimic"),
}


@dataclass
class Findings:
    """What the check found, from bad to harmless."""

    errors: list[Omission] = field(default_factory=list)  # the file cannot be understood
    refusals: list[Omission] = field(default_factory=list)  # understood, cannot be represented: stop a strict load
    notes: list[Omission] = field(default_factory=list)  # left out without effect on the motion that URDF defines
    customs: list[Omission] = field(default_factory=list)  # read as most files mean it; told where all is asked for


def check(root: Element, findings: Findings) -> Element:
    """A copy of the tree that holds only sound URDF; what else there was stands in the findings."""
    _find_xacro(root, findings)
    for tag in ("link", "joint"):
        count = sum(element.tag == tag for element in root)
        if count > MAX_LINKS:
            findings.errors.append(Omission("robot", f"expected at most {MAX_LINKS} {tag}s, there are {count}"))
            return root
    clean = _copy(root, "robot", findings, findings.errors)
    for link in root.findall("link"):
        _check_symmetry(link, findings)
    return clean


def _find_xacro(root: Element, findings: Findings):
    for element in root.iter():
        if element.tag.startswith("xacro:"):
            reason = "this is a xacro file: run `xacro` first and load what it writes"
            findings.errors.append(Omission(f"<{element.tag}>", reason, line_of(element)))
            return


def _check_symmetry(link: Element, findings: Findings):
    """Some files give products of inertia twice; they must agree."""
    for inertia in link.iterfind("inertial/inertia"):
        for upper, lower in (("ixy", "iyx"), ("ixz", "izx"), ("iyz", "izy")):
            twice = [numbers_in(inertia.get(key, "")) for key in (upper, lower)]
            if all(twice) and twice[0] != twice[1]:
                reason = f"{upper} is {twice[0]} and {lower} is {twice[1]}: they must be equal"
                findings.errors.append(Omission(_name(link, "robot"), reason, line_of(inertia)))


def _copy(element: Element, where: str, findings: Findings, faults: list[Omission]) -> Element:
    """The known part of an element; faults go to `faults`, what is unknown to the notes."""
    clean = Element(element.tag, _sound_attributes(element, where, findings, faults))
    allowed = CHILDREN.get(element.tag, {})
    seen: dict[str, int] = {}
    for child in element:
        inner = _name(child, where)
        if element.get("type") == "fixed" and child.tag in ("axis", "limit", "dynamics"):
            continue  # a joint that does not move has no use for them
        if child.tag not in allowed:
            _report_unknown(child, element, inner, findings)
            continue
        if child.tag == "dynamics" and element.get("type") in ("floating", "planar"):
            _report_wide_dynamics(child, element, where, findings, faults)
            continue
        seen[child.tag] = seen.get(child.tag, 0) + 1
        if allowed[child.tag] != "*" and seen[child.tag] > 1:
            harmless = child.tag == "material"
            reason = "left out: a shape has one colour" if harmless else "expected one such element, this is one more"
            (findings.notes if harmless else faults).append(Omission(inner, reason, line_of(child)))
            continue
        _copy_child(child, inner, clean, findings, faults)
    for tag, count in allowed.items():
        if count == "1" and tag not in seen:
            faults.append(Omission(where, f"expected a <{tag}> in it, there is none", line_of(element)))
    if element.tag == "geometry" and sum(seen.values()) != 1:
        reason = f"expected one of {', '.join(SHAPES)}, got {', '.join(c.tag for c in element) or 'nothing'}"
        faults.append(Omission(where, reason, line_of(element)))
    return clean


def _report_unknown(child: Element, parent: Element, where: str, findings: Findings):
    """An element that is not known here: refused if it looks like a part of the mechanism, else noted."""
    prefix, separator, local = child.tag.rpartition(":")
    wanted = _meant(local, parent)
    if separator and (wanted or local in DRAKE):
        ends = [e.get("link") for e in child if e.tag.rpartition(":")[2] in ("parent", "child") and e.get("link")]
        joins = f"; it would join {' and '.join(map(repr, ends))}" if ends else ""
        reason = f"not covered: elements of the namespace {prefix!r} are not read{joins}"
        findings.refusals.append(Omission(where, reason, line_of(child)))
    elif separator:
        findings.notes.append(Omission(where, f"left out: the namespace {prefix!r} is not read", line_of(child)))
    elif wanted:
        places = " or ".join(f"<{tag}>" for tag, inside in CHILDREN.items() if wanted in inside)
        of_no_link = parent.tag == "robot" and wanted == child.tag  # a warning: it cannot have meant a certain one
        known = findings.notes if of_no_link else findings.refusals
        known.append(Omission(where, f"expected <{wanted}> in {places}; left out here", line_of(child)))
    else:
        reason = BEYOND.get(child.tag, "not part of URDF")
        findings.notes.append(Omission(where, f"left out: {reason}", line_of(child)))


def _meant(tag: str, parent: Element) -> str | None:
    """The element of URDF that a tag misspells (case, plural), or that stands where it has no effect."""
    if tag in ATTRIBUTES:
        return tag if tag in MECHANISM and parent.tag in CONTAINERS else None
    return next((known for known in (tag.lower(), tag.lower().removesuffix("s")) if known in ATTRIBUTES), None)


def _report_wide_dynamics(child: Element, joint: Element, where: str, findings: Findings, faults: list[Omission]):
    """Damping and friction of a joint of several freedoms, one number or several: URDF gives them no unit."""
    values = {key: numbers_in(child.get(key, "0")) for key in ATTRIBUTES["dynamics"]}
    for key, numbers in values.items():
        if not numbers or not all(map(math.isfinite, numbers)):
            reason = f"{key}: expected finite numbers, got {child.get(key)!r:.100}"
            faults.append(Omission(f"{where} <dynamics>", reason, line_of(child)))
    if any(any(numbers or ()) for numbers in values.values()):
        reason = f"<dynamics> of a {joint.get('type')} joint has no defined unit"
        findings.refusals.append(Omission(where, reason, line_of(child)))


def _copy_child(child: Element, where: str, parent: Element, findings: Findings, faults: list[Omission]):
    """A faulty shape is left out on its own: the link moves without it."""
    if child.tag not in ("visual", "collision"):
        parent.append(_copy(child, where, findings, faults))
        return
    inside: list[Omission] = []
    clean = _copy(child, where, findings, inside)
    if _has_zero_size(child):
        findings.notes.append(Omission(where, "left out: a shape of size zero", line_of(child)))
    elif inside:
        findings.refusals.extend(inside)
    else:
        clean.set("line", str(line_of(child) or 0))
        parent.append(clean)


def _has_zero_size(shape: Element) -> bool:
    sizes = [
        e.get(key) for tag in ("sphere", "box") for e in shape.iter(tag) for key in ("radius", "size") if e.get(key)
    ]
    return any(0.0 in (numbers_in(size) or ()) for size in sizes if size)


def _name(element: Element, where: str) -> str:
    name = (element.get("name") or element.get("reference") or "")[:200]
    if element.tag in ("link", "joint", "loop_joint", "frame") and where == "robot":
        return f"{element.tag} {name!r}" if name else f"<{element.tag}>"
    label = f"<{element.tag} {name!r}>" if name else f"<{element.tag}>"
    return label if where == "robot" else f"{where} {label}"


def _sound_attributes(element: Element, where: str, findings: Findings, faults: list[Omission]) -> dict[str, str]:
    known = ATTRIBUTES.get(element.tag, {})
    sound = {}
    for key, value in element.attrib.items():
        if key.lower() in known and key not in known:
            reason = f"attribute {key!r} left out: expected {key.lower()!r}"
            findings.refusals.append(Omission(where, reason, line_of(element)))
            continue
        if key not in known:
            if not key.startswith("xmlns"):
                findings.notes.append(
                    Omission(where, f"attribute {key!r} left out: not part of URDF", line_of(element))
                )
            continue
        fault = _fault(value, known[key])
        if fault:
            faults.append(Omission(where, f"{key}: expected {fault}, got {value!r:.100}", line_of(element)))
        else:
            sound[key] = value if known[key].startswith("text") else " ".join(map(repr, numbers_in(value) or ()))
    for key, kind in known.items():
        if kind.endswith("!") and key not in element.attrib:
            faults.append(Omission(where, f"expected an attribute {key!r}, there is none", line_of(element)))
    return sound


def _fault(text: str, kind: str) -> str:
    """What was expected instead of `text`, or nothing."""
    if len(text) > MAX_TEXT:
        return f"at most {MAX_TEXT} characters"
    kind, required = kind.removesuffix("!"), kind.endswith("!")
    if kind == "text":
        return "" if text.strip() or not required else "a name"
    numbers = numbers_in(text)
    if kind == "limit":
        return "" if numbers is not None and len(numbers) == 1 and not math.isnan(numbers[0]) else "a number"
    if numbers is None or not all(map(math.isfinite, numbers)):
        return "finite numbers" if kind[0] != "1" else "a finite number"
    wanted = (1, 3) if kind == "scale" else (int(kind[0]),)
    if len(numbers) not in wanted:
        return f"{' or '.join(map(str, wanted))} numbers"
    if kind.endswith("+") and not all(n > 0 for n in numbers):
        return "positive numbers"
    return ""


def numbers_in(text: str) -> list[float] | None:
    """The numbers of an attribute, between spaces or between commas, or None if something else stands there.

    Only decimal numbers in ASCII that float64 holds: no hexadecimals, no digits of other scripts, no overflow.
    """
    if len(text) > MAX_TEXT:
        return None
    parts = [part.strip(WHITESPACE) for part in text.split(",")] if "," in text else re.split(r"[ \t\r\n]+", text)
    numbers = [_number(part) for part in parts if part or "," in text]
    return None if None in numbers else [number for number in numbers if number is not None]


def _number(text: str) -> float | None:
    if not NUMBER.fullmatch(text):
        return None
    value, digits = float(text), re.split("[eE]", text)[0]
    overflows = math.isinf(value) and any(c.isdigit() for c in digits)
    vanishes = value == 0 and any(c in "123456789" for c in digits)
    return None if overflows or vanishes else value
