"""Small robots of the tests of control."""

import numpy as np

import knuckle as kn


def carriages(limit: float = np.inf, **options) -> kn.Model:
    """Two masses on a rail with a spring between: semi-implicit Euler is linear in state and control."""
    body = {"mass": 1.0, "inertia": (1.0, 1.0, 1.0)}
    return kn.build(
        [
            kn.Link("a", joints=kn.prismatic("x"), **body),
            kn.Link("b", "a", kn.prismatic("x", stiffness=2.0, damping=0.1), **body),
        ],
        actuators=[
            kn.motor("a_joint", control_lower=-limit, control_upper=limit),
            kn.motor("b_joint", control_lower=-limit, control_upper=limit),
        ],
        gravity=(0, 0, 0),
        **options,
    )


def pendulum(limit: float = np.inf, damping: float = 0.05) -> kn.Model:
    """One rod with a motor; it hangs at q = 0."""
    rod = kn.Link("rod", joints=kn.revolute("y", damping=damping), mass=1.0, com=(0, 0, -0.5), inertia=(0.1, 0.1, 0.01))
    return kn.build([rod], actuators=[kn.motor("rod_joint", control_lower=-limit, control_upper=limit)])


def satellite() -> kn.Model:
    """A body that turns freely about a ball joint, with three motors."""
    body = kn.Link("body", joints=kn.ball(), mass=1.0, inertia=(0.1, 0.2, 0.3))
    motors = [kn.motor("body_joint", name=f"m{k}", gear=tuple(np.eye(3)[k])) for k in range(3)]
    return kn.build([body], actuators=motors, gravity=(0, 0, 0))
