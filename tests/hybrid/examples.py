"""Hybrid models that hold everything a file can hold."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle import neural, robots
from knuckle.hybrid import Hybrid
from knuckle.model.geometry import Mesh, Shape

KEY = jax.random.key(3)
PENDULUM = robots.load("double_pendulum")
FACES = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])
TETRAHEDRON = Mesh(0.1 * np.vstack([np.zeros(3), np.eye(3)]), FACES, "tetra.stl")
STATE = ("q", "qd")


def everything() -> kn.Model:
    """Every kind of joint, shape, actuator and equality."""
    shapes = kn.shapes
    links = [
        kn.Link("trunk", joints=kn.free(), mass=2.0, shapes=shapes.box(0.2, 0.1, 0.1), frames=[kn.Frame("imu")]),
        kn.Link("head", "trunk", position=(0, 0, 0.2), mass=0.3, shapes=shapes.sphere(0.05, name="skull")),
        kn.Link(
            "arm",
            "trunk",
            [kn.revolute("y", lower=-1, upper=2, friction=0.1), kn.prismatic("x", damping=0.3, effort=5.0)],
            position=(0.2, 0, 0),
            mass=0.5,
            shapes=[Shape("mesh", mesh=TETRAHEDRON), shapes.points([(0.1, 0, 0), (0, 0.1, 0)])],
        ),
        kn.Link("puck", joints=kn.planar("z"), mass=0.2, shapes=shapes.polygon([(0, 0), (1, 0), (0, 1)])),
        kn.Link("bob", joints=kn.ball(), mass=0.4, com=(0, 0, -0.3), shapes=shapes.ellipsoid(0.1, 0.2, 0.3)),
        kn.Link("wheel", "bob", kn.revolute("z"), mass=0.1, inertia=(1e-3, 1e-3, 2e-3), position=(0, 0, -0.5)),
    ]
    return kn.build(
        links,
        name="everything",
        world_shapes=[shapes.plane(), shapes.cylinder(0.1, 0.2), shapes.capsule(0.1, 0.2)],
        world_frames=[kn.Frame("door", (1, 2, 3))],
        actuators=[kn.motor("arm_joint0", gear=3.0), kn.position_servo("wheel_joint", 5.0, control_upper=1.0)],
        equalities=[kn.Connect("puck", "trunk"), kn.Weld("bob"), kn.Mimic("wheel_joint", "arm_joint0", active=False)],
        excludes=[("trunk", "head"), ("world", "puck")],
        keyframes={"home": np.linspace(0.1, 1.0, 17)},
    )


def mlp_of_equinox(inputs: int, outputs: int, **options) -> eqx.nn.MLP:
    return eqx.nn.MLP(inputs, outputs, 5, 1, key=KEY, **options)


def sequence() -> eqx.nn.Sequential:
    linear = eqx.nn.Linear(4, 2, key=KEY)
    return eqx.nn.Sequential([linear, eqx.nn.Lambda(jnp.tanh), eqx.nn.LayerNorm(2), eqx.nn.Identity()])


def pendulum_blueprint() -> kn.Blueprint:
    """Plain, stacked, recurrent, of Equinox; scaled, bounded, of constants and of what was before."""
    stacked = neural.each(2, lambda key: neural.MLP((3, 4, 1), "elu", key=key, zero_last=False), KEY)
    pairs = eqx.filter_vmap(lambda key: eqx.nn.MLP(2, "scalar", 3, 2, activation=jax.nn.softplus, key=key))
    return kn.Blueprint(
        {
            "joint/force": (
                kn.Augment(neural.MLP((4, 6, 2), key=KEY, zero_last=False), STATE, bound=3.0, input_scale=jnp.ones(4)),
                kn.Augment(stacked, ("q", "qd", 0.5), share="each", output_scale=2.0),
                kn.Augment(neural.Recurrent(5, 2, 3, "lstm", key=KEY), (*STATE, "time")),
            ),
            "joint/passive_force": kn.Augment(neural.Passive(PENDULUM, (3,), key=KEY), STATE),
            "joint/acceleration": (
                kn.Augment(pairs(jax.random.split(KEY)), STATE, "scale", share="each"),
                kn.Augment(mlp_of_equinox(1, 1), (kn.previous("joint/force"),), share="rows", rows=(1,)),
            ),
            "next/qd": kn.Augment(sequence(), STATE, "scale"),
        }
    )


def with_gains(blueprint: kn.Blueprint) -> kn.Blueprint:
    """The blueprint where every network acts."""
    weights = blueprint.weights
    trained = {key: (w, None if gain is None else gain + 0.1) for key, (w, gain) in weights.items()}
    return blueprint.with_weights(trained)


def in_type(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if hasattr(leaf, "dtype") else leaf, tree)


HYBRIDS = {
    "everything": Hybrid(everything(), None, kn.contact.InteriorPoint(friction=0.3), kn.Implicit(), 0.002),
    "everything in float32": Hybrid(in_type(everything(), np.float32)),
    "in arrays of JAX": Hybrid(jax.tree.map(jnp.asarray, everything())),
    "pendulum": Hybrid(PENDULUM, with_gains(pendulum_blueprint()), None, kn.SemiImplicitEuler(), 0.01, {"seed": 3}),
    "networks in float32": Hybrid(PENDULUM, in_type(pendulum_blueprint(), jnp.float32), dt=0.01),
    "quadruped": Hybrid(
        robots.load("quadruped"),
        kn.Blueprint({"contact/friction": kn.Augment(neural.Linear(1, 1), ("contact/depth",), share="rows")}),
        kn.contact.Impulse(
            restitution=jnp.asarray(0.5), alpha=np.float64(30.0), friction=0.7, restitution_law="passive"
        ),
        dt=0.01,
        notes={"from": "log 7", "loss": [0.5, 0.25], "unicode": "\u00b5"},
    ),
    "rules": Hybrid(
        robots.load("quadruped"),
        kn.Blueprint({"contact.feet/friction": kn.Augment(neural.Linear(1, 1), ("contact.feet/depth",), share="rows")}),
        kn.contact.PerPair(
            feet=kn.contact.Rule(("*_foot|floor", "link:*shank|world"), kn.contact.Compliant(stiffness=jnp.array(2e4))),
            rest=kn.contact.Impulse(friction=0.3, most_contacts=6),
            correction=0.3,
        ),
        dt=0.002,
    ),
    "springs": Hybrid(PENDULUM, None, kn.contact.Compliant(stiffness=jnp.array([1e4, 2e4]), substeps=3), kn.RK4()),
}


def fields(hybrid: Hybrid) -> dict:
    """As arguments of save_hybrid."""
    names = ("model", "blueprint", "contact", "integrator", "dt", "notes")
    return {name: getattr(hybrid, name) for name in names}
