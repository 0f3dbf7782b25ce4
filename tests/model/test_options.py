"""Signatures name every argument, and a misspelt one is refused with the names that there are."""

from __future__ import annotations

import inspect

import pytest

import knuckle as kn
from knuckle.model.description import Actuator, Description, Joint
from knuckle.model.geometry import Shape


@pytest.mark.parametrize(
    ("function", "cls", "without"),
    [
        (kn.build, Description, {"links"}),
        (kn.revolute, Joint, {"kind"}),
        (kn.free, Joint, {"kind", "axis"}),
        (kn.motor, Actuator, set()),
        (kn.position_servo, Actuator, {"gain", "bias"}),
        (kn.shapes.box, Shape, {"kind", "size", "mesh"}),
        (kn.shapes.polygon, Shape, {"kind", "mesh"}),
    ],
)
def test_signatures_name_the_fields_that_are_passed_on(function, cls, without):
    parameters = inspect.signature(function).parameters
    assert set(cls.__dataclass_fields__) - without <= set(parameters)
    assert not any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    assert not without & set(parameters) - {"links"}


def test_linearize_names_the_arguments_of_a_step():
    options = set(inspect.signature(kn.step).parameters) - {"native", "check"}
    assert options | {"unclipped"} == set(inspect.signature(kn.linearize).parameters)


def test_a_misspelt_argument_is_refused_by_name():
    with pytest.raises(TypeError, match=r"revolute: no argument 'dampng'; did you mean damping\? there are axis, "):
        kn.revolute("y", dampng=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"build: no argument 'equality'"):
        kn.build([], equality=())  # type: ignore[call-arg]


def test_completion_finds_what_is_imported_later():
    assert {"fit", "Recording", "native", "load_hybrid", "rollout"} <= set(dir(kn))
