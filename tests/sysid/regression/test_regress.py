"""Torque regression on logs of robots whose parameters are known."""

import dataclasses

import equinox as eqx
import jax
import numpy as np
import pytest

import knuckle as kn
from knuckle import robots, sysid
from knuckle.dynamics import crba
from knuckle.sysid.base_parameters import inertial
from knuckle.sysid.regression.friction import LOAD, dahl_state
from knuckle.sysid.regression.prior import pseudo_inertia

from .driven import fourier, log, rubbing, torques

ARM = robots.load("arm")
TRUE = rubbing(eqx.tree_at(lambda m: m.inertia.mass, ARM, np.asarray(ARM.inertia.mass) * np.linspace(0.8, 1.3, ARM.nv)))


@pytest.fixture(scope="module")
def clean():
    return sysid.regress(ARM, log(TRUE), terms=())


def base_truth(found, true):
    rotors = np.asarray(true.armature)[list(found.base_parameters.rotors)]
    return found.base_parameters.matrix @ np.concatenate([np.asarray(inertial(true)), rotors])


def test_a_log_without_noise_gives_the_parameters_back(clean):
    """Determined combinations to 1 % of the largest of their kind: 100 Hz differences leave about 0.2 %."""
    truth = base_truth(clean, TRUE)
    sizes = {
        unit: max(abs(t) for q, t in zip(clean.base, truth, strict=True) if q.unit == unit)
        for unit in {q.unit for q in clean.base}
    }
    for q, true in zip(clean.base, truth, strict=True):
        if q.verdict == "determined":
            assert abs(q.value - true) < 0.01 * sizes[q.unit], q
    assert sum(q.verdict == "determined" for q in clean.base) > len(clean.base) / 2
    for name in ARM.joint_names:
        np.testing.assert_allclose(clean[f"{name}.damping"].value, 0.5, rtol=0.02)
        np.testing.assert_allclose(clean[f"{name}.friction"].value, 0.4, rtol=0.02)
    assert abs(clean.delay) < 1e-3
    assert all(e.held_out < 0.02 * e.effort and e.training < e.described for e in clean.errors)


def test_the_fitted_model_is_consistent_and_moves_like_the_true_one(clean):
    assert np.all(np.linalg.eigvalsh(pseudo_inertia(np.asarray(inertial(clean.model)).reshape(-1, 10))) > 0)
    q = fourier(ARM, np.arange(5.0), 9)[0]
    for at in q:
        ratio = np.diag(np.asarray(crba(clean.model, at))) / np.diag(np.asarray(crba(TRUE, at)))
        np.testing.assert_allclose(ratio, 1.0, atol=0.02)
    time = np.arange(200) / 100
    motion = fourier(ARM, time, 5)
    np.testing.assert_allclose(
        clean.inverse_dynamics(*motion), torques(TRUE, *motion), atol=0.02 * np.abs(torques(TRUE, *motion)).max()
    )


def test_the_text_names_joints_units_and_what_rests_on_the_prior(clean):
    text = str(clean)
    assert all(name in text for name in ARM.joint_names)
    assert "N m" in text and "rests on the prior" in text and "held out" in text


@pytest.mark.parametrize(("late", "terms"), [(0.008, ()), (0.05, ("pre-sliding",))])
def test_late_efforts_are_found_and_corrected(late, terms):
    """Found to 1 ms; a gross delay with pre-sliding to choose, which must not take it up."""
    found = sysid.regress(ARM, sysid.shift(log(TRUE, seed=1, seconds=12), "tau", late), terms=terms)
    assert abs(found.delay - late) < 1e-3
    assert found["elbow.armature"].value > 0


def test_uneven_stamps_gaps_missing_samples_and_outliers_change_little():
    """Stamps off by up to a quarter, a gap, one sample in twenty lost, efforts 100 times too large: 3 %."""
    rng = np.random.default_rng(0)
    time = np.arange(2000) / 100 + rng.uniform(-0.25, 0.25, 2000) / 100
    time[1000:] += 3.0
    run = log(TRUE, time=time)
    tau, q = run["tau"].values.copy(), run["q"].values.copy()
    tau[rng.random(tau.shape) < 0.05] = np.nan
    tau[rng.integers(0, 2000, 8), rng.integers(0, ARM.nv, 8)] = 1e3
    q[500:504] = np.nan
    spoilt = kn.Recording.of(ARM, time, q=q, qd=run["qd"].values, tau=tau)
    found = sysid.regress(ARM, spoilt, terms=())
    at = np.asarray(ARM.reference)
    ratio = np.diag(np.asarray(crba(found.model, at))) / np.diag(np.asarray(crba(TRUE, at)))
    np.testing.assert_allclose(ratio, 1.0, atol=0.03)
    assert all(np.isfinite(q.value) for q in found.parameters)


def test_velocities_need_not_be_measured():
    run = log(TRUE)
    found = sysid.regress(ARM, run.replace(qd=None), terms=())
    at = np.asarray(ARM.reference)
    ratio = np.diag(np.asarray(crba(found.model, at))) / np.diag(np.asarray(crba(TRUE, at)))
    np.testing.assert_allclose(ratio, 1.0, atol=0.03)


def test_currents_become_torques_by_gains_and_controls_by_gears():
    """Both give what torques give, to rounding."""
    run = log(TRUE)
    gain = dict(zip(ARM.joint_names, np.linspace(5, 9, ARM.nv).tolist(), strict=True))
    currents = run.replace(
        tau=dataclasses.replace(run["tau"], values=run["tau"].values / np.array(list(gain.values())))
    )
    plain = sysid.regress(ARM, run, terms=(), delay=0.0)
    by_gain = sysid.regress(ARM, currents, gains=gain, terms=(), delay=0.0)
    np.testing.assert_allclose(by_gain.theta, plain.theta, rtol=1e-6, atol=1e-9)
    if ARM.nu == ARM.nv and not np.asarray(ARM.actuators.bias).any():
        factor = np.asarray(ARM.actuators.gear) * np.asarray(ARM.actuators.gain)
        control = run["tau"].values / factor
        driven = kn.Recording.of(ARM, run.time, q=run["q"].values, qd=run["qd"].values, control=control)
        assert sysid.regress(ARM, driven, terms=(), delay=0.0).errors[0].held_out < 0.05


def test_load_dependent_and_pre_sliding_friction_are_chosen_where_they_are():
    """Both at the second joint only; the load's coefficient to a fifth, the reach within a factor of two."""
    joint, mu, reach = 1, 0.08, 2e-3
    time = np.arange(3000) / 100
    q, qd, qdd = fourier(ARM, time, 3)
    tau = torques(TRUE, q, qd, qdd)
    z = dahl_state(q[:, joint], 1.0, reach)
    rigid = tau[:, joint] - 0.5 * qd[:, joint] - 0.4 * np.tanh(qd[:, joint] / 0.01)
    tau[:, joint] = rigid + 0.5 * qd[:, joint] + (0.4 + mu * np.abs(rigid)) * z
    tau += 0.02 * np.random.default_rng(0).normal(size=tau.shape) * np.sqrt(np.mean(tau**2, axis=0))
    found = sysid.regress(ARM, kn.Recording.of(ARM, time, q=q, qd=qd, tau=tau))
    name = ARM.joint_names[joint]
    assert "load" in found.terms[name] and "pre-sliding" in found.terms[name]
    np.testing.assert_allclose(found[f"{name}.{LOAD}"].value, mu, rtol=0.2)
    fitted = found.layout.friction[found.layout.joints.index(joint)].reach
    assert fitted is not None and reach / 2 < fitted < 2 * reach
    assert found.blueprint is not None


def test_a_roll_out_with_the_law_has_the_accelerations_that_inverse_dynamics_asks_for(tmp_path):
    """Forward dynamics with the blueprint undoes inverse dynamics with load-dependent friction, to rounding."""
    friction = tuple(
        dataclasses.replace(f, load=j == 1, stribeck_speed=0.2 if j == 2 % ARM.nv else None)
        for j, f in enumerate(sysid.regress(ARM, log(TRUE), terms=(), delay=0.0).layout.friction)
    )
    found = sysid.regress(ARM, log(TRUE), terms=(), delay=0.0)
    layout = dataclasses.replace(found.layout, friction=friction)
    theta = found.layout.moved(found.theta, layout)
    theta[layout.at(1, LOAD)] = 0.1
    theta[layout.at(2 % ARM.nv, "Stribeck friction")] = 0.3
    from knuckle.sysid.regression.fitted import fitted_robot

    model, blueprint = fitted_robot(ARM, layout, theta)
    assert blueprint is not None
    kn.save_hybrid(tmp_path / "law.knuckle", model, blueprint, contact=None, dt=1e-3)
    again = kn.load_hybrid(tmp_path / "law.knuckle")
    changed = dataclasses.replace(found, model=model, layout=layout, theta=theta)
    q, qd, qdd = (x[:1] for x in fourier(ARM, np.array([1.3]), 2))
    tau = changed.inverse_dynamics(q, qd, qdd)[0]
    factor = np.asarray(ARM.actuators.gear) * np.asarray(ARM.actuators.gain)
    dt = 1e-7
    with jax.enable_x64(True):
        for robot in (model, again.model):
            after = kn.step(
                robot,
                kn.State(q[0], qd[0]),
                tau / factor,
                dt=dt,
                contact=None,
                blueprint=blueprint if robot is model else again.blueprint,
            )
            np.testing.assert_allclose((np.asarray(after.qd) - qd[0]) / dt, qdd[0], atol=1e-5 * np.abs(qdd).max())


def test_pre_sliding_in_a_roll_out_is_that_of_the_fit():
    """The state of the law along a roll-out equals Dahl's state along its displacement."""
    import jax.numpy as jnp

    from knuckle.neural import JointFriction

    law = JointFriction((0,), (0,), 1, 1, (True,))
    law = eqx.tree_at(lambda m: (m.coulomb, m.reach, m.speed), law, (jnp.ones(1), jnp.full(1, 0.02), jnp.full(1, 0.01)))
    q = 0.1 * np.sin(np.arange(60) / 9)
    qd = np.gradient(q)
    state, forces = law.initial_state(), []
    for at, speed in zip(q, qd, strict=True):
        force, state = law(jnp.array([at, speed, 0.0]), state)
        forces.append(float(force[0]))
    np.testing.assert_allclose(forces, -dahl_state(q, np.tanh(qd[0] / 0.01), 0.02), atol=1e-6)


def test_gradients_through_a_roll_out_with_pre_sliding_are_those_of_differences():
    """One swing with reversals: by Coulomb friction and reach, 1e-4 relative for central differences of 1e-5."""
    import jax.numpy as jnp

    from knuckle.neural import JointFriction

    pendulum = robots.load("double_pendulum")
    law = JointFriction((0, 1), (0, 1), 2, 2, (True, True))

    def end(x):
        fitted = eqx.tree_at(
            lambda m: (m.coulomb, m.reach, m.speed), law, (x[:2], x[2:], jnp.full(2, 0.01))
        )  # fmt: skip
        blueprint = kn.Blueprint({"joint/force": kn.Augment(fitted, ("q", "qd", "joint/force"))})
        start = kn.State(jnp.array([0.5, 0.2]), jnp.zeros(2))
        return kn.rollout(pendulum, start, dt=0.005, steps=150, blueprint=blueprint).q[-1].sum()

    with jax.enable_x64(True):
        x = jnp.array([0.05, 0.03, 0.02, 0.03])
        exact = np.asarray(jax.jit(jax.grad(end))(x))
        run, h = jax.jit(end), 1e-5
        moved = [float(run(x + h * e) - run(x - h * e)) / (2 * h) for e in jnp.eye(4)]
    np.testing.assert_allclose(exact, moved, rtol=1e-4, atol=1e-6)


def test_a_parameter_at_its_bound_has_an_interval_of_the_size_of_the_others():
    """Joints without friction: estimates at 0 are no more certain than those just above it."""
    true = rubbing(ARM, damping=0.0, friction=0.0)
    found = sysid.regress(ARM, log(true, noise=0.1), terms=())
    for column in ("damping", "friction"):
        rows = [found[f"{name}.{column}"] for name in ARM.joint_names]
        assert any(q.value == 0 for q in rows)
        assert all(q.lower == 0 for q in rows if q.value == 0)
        held, free = ([q.upper - q.value for q in rows if (q.value == 0) is at] for at in (True, False))
        assert min(held) > 0.1 * np.median(held + free), column


def gantry() -> kn.Model:
    """Three slides, the last of them vertical."""
    links = [
        kn.Link("bridge", joints=kn.prismatic("x", name="x"), mass=20.0, inertia=(1.0,) * 3),
        kn.Link("carriage", "bridge", kn.prismatic("y", name="y"), mass=8.0, inertia=(0.3,) * 3),
        kn.Link("head", "carriage", kn.prismatic("z", name="z"), mass=3.0, inertia=(0.1,) * 3),
    ]
    return kn.build(links, actuators=[kn.motor(n, name=n) for n in ("x", "y", "z")], name="gantry")


@pytest.mark.parametrize("width", [0.0, 1e-3, 1e-2])
def test_slow_slides_get_a_friction_of_their_own_width(width):
    """Speeds of some 0.1 m/s: a tanh of 0.01 m/s would misplace friction of width 0 or 1 mm/s by 1 to 5 %.

    Friction to 1 % of the larger axes; 95 % intervals of friction and damping hold in at least 5 of 6 cases.
    """
    model, friction, damping = gantry(), np.array([15.0, 8.0, 4.0]), np.array([30.0, 20.0, 10.0])
    rng, time = np.random.default_rng(5), np.arange(4000) / 200
    q, qd, qdd = fourier(model, time, 0, 0.05)
    dry = np.sign(qd) if width == 0 else np.tanh(qd / width)
    tau = torques(model, q, qd, qdd) + np.array([5.0, 3.0, 1.0]) * qdd + damping * qd + friction * dry
    tau += 0.02 * np.sqrt(np.mean(tau**2, axis=0)) * rng.normal(size=tau.shape)
    q, qd = q + 2e-6 * rng.normal(size=q.shape), qd + 2e-4 * rng.normal(size=q.shape)
    found = sysid.regress(model, kn.Recording.of(model, time, q=q, qd=qd, tau=tau))
    rows = [(found[f"{n}.friction"], f) for n, f in zip("xyz", friction, strict=True)]
    assert all(abs(q.value / f - 1) < 0.01 for q, f in rows[:2]), rows
    rows += [(found[f"{n}.damping"], d) for n, d in zip("xyz", damping, strict=True)]
    assert sum(q.lower <= true <= q.upper for q, true in rows) >= 5, rows
    if width:
        widths = np.array([f.width for f in found.layout.friction])
        assert np.all((width / 1.5 < widths) & (widths < 1.5 * width)), widths


def test_a_robot_that_only_shows_noise_is_stationary_and_a_slow_one_is_not():
    model, rng, time = gantry(), np.random.default_rng(0), np.arange(4000) / 200
    q, qd, tau = np.array([1e-5, 3e-3, 1.0])[:, None, None] * rng.normal(size=(3, 4000, 3))
    with pytest.raises(ValueError, match=r"stationary: no joint moves faster than its noise .* m/s"):
        sysid.regress(model, kn.Recording.of(model, time, q=q, qd=qd, tau=tau))
    q, qd, qdd = fourier(model, time, 0, 0.003)  # at most some mm/s
    tau = torques(model, q, qd, qdd) + 4 * np.sign(qd) + 1e-3 * rng.normal(size=q.shape)
    found = sysid.regress(model, kn.Recording.of(model, time, q=q, qd=qd, tau=tau), terms=(), delay=0.0)
    np.testing.assert_allclose([found[f"{n}.friction"].value for n in "xyz"], 4.0, rtol=0.02)
