"""Every option of `knuckle fit` does what it says, on a robot so small that a fit takes about a second."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import equinox as eqx
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import knuckle as kn
from knuckle import sysid
from knuckle.cli import app
from knuckle.cli_networks import Learning
from knuckle.cli_observe import Observed
from knuckle.cli_parse import patterns

MASS, DAMPING = 1.3, 0.1
POLE = f"""<mujoco model="pole"><worldbody><body name="rod"><joint name="hinge" axis="0 1 0" damping="{DAMPING}"/>
<inertial pos="0 0 -0.5" mass="1" diaginertia="0.02 0.02 0.002"/><site name="tip" pos="0 0 -1"/></body></worldbody>
<actuator><motor name="hinge" joint="hinge"/></actuator></mujoco>"""
BALL = """<mujoco model="ball"><worldbody><geom name="floor" type="plane" size="1 1 1"/><body name="ball" pos="0 0 0.1">
<joint name="height" type="slide" axis="0 0 1"/><geom name="skin" type="sphere" size="0.1" mass="1"/></body></worldbody>
</mujoco>"""
BRICK = """<robot name="brick"><link name="brick"><inertial><mass value="1"/>
<inertia ixx="0.02" iyy="0.03" izz="0.04" ixy="0" ixz="0" iyz="0"/></inertial></link></robot>"""
CAMERA = """import jax.numpy as jnp
import knuckle as kn

def tip(model, state):
    p = kn.kinematics.frame_pose(model, state.q, "tip").position
    return jnp.stack([500 * p[0], 500 * p[2]])

def first(model, state):
    return tip(model, state)[:1]

def broken(model, state):
    return state.colour
"""
PERIOD, SAMPLES, DT = 0.01, 151, 0.005
STEPPED = ("--integrator", "semi-implicit", "--step", DT)  # as the logs were made, and soon compiled
WIDE = {"COLUMNS": "200", "TERM": "dumb"}  # plain text
FAST = (*STEPPED, "--drive", "linear", "--held-out", 0)


@pytest.fixture
def knuckle(tmp_path, monkeypatch):
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


def written(folder: Path) -> dict:
    return json.loads((folder / "fit.json").read_text())


def row(data: dict, name: str) -> SimpleNamespace:
    (found,) = [row for row in data["parameters"] if row["name"] == name]
    return SimpleNamespace(**found)


def networks_in(blueprint: kn.Blueprint | None) -> dict[str, tuple[kn.Augment, ...]]:
    return {} if blueprint is None else blueprint.augments


def write_csv(path: Path, **columns) -> None:
    names = ",".join(columns)
    np.savetxt(path, np.column_stack(list(columns.values())), delimiter=",", header=names, comments="")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A rod on a motor with another mass than its description says: times, positions, velocities, controls."""
    folder = tmp_path_factory.mktemp("pole")
    (folder / "pole.xml").write_text(POLE)
    (folder / "camera.py").write_text(CAMERA)
    model = kn.load(folder / "pole.xml")
    truth = eqx.tree_at(lambda m: m.inertia.mass, model, np.array([MASS]))
    t, fine = PERIOD * np.arange(SAMPLES), DT * (np.arange(2 * (SAMPLES - 1)) + 0.5)
    u = 2 * np.sin(3 * t + 0.3) + np.sin(7.1 * t)
    motion = kn.rollout(truth, model.state(np.array([0.8])), np.interp(fine, t, u)[:, None], dt=DT, native=True)
    q, qd = (np.append(x0, np.asarray(x)[1::2, 0]) for x0, x in ((0.8, motion.q), (0.0, motion.qd)))
    noisy = q + 1e-3 * np.random.default_rng(0).normal(size=SAMPLES)
    write_csv(folder / "log.csv", time=t, hinge=noisy, ctrl_hinge=u)
    return SimpleNamespace(
        folder=folder, robot=folder / "pole.xml", log=folder / "log.csv", t=t, u=u, q=q, qd=qd, noisy=noisy
    )


def test_a_log_that_says_little_and_all_that_is_known_beforehand(knuckle, tmp_path, made):
    """Degrees without a unit, no times, a column too many, an encoder that is 5 degrees off, two outliers."""
    measured = np.degrees(made.noisy) + 5
    measured[[40, 90]] += 3
    write_csv(tmp_path / "odd.csv", enc=measured, ctrl_hinge=made.u, junk=made.u)
    words = ["--column=enc=q hinge", "--ignore=junk", "--units=deg", "--rate=100", "--offset=q", "--robust=huber"]
    words += ["--noise=q=0.002", "--free=*.mass=0.5:~0.4", "--free=hinge.damping=:3", "--segment=0.4"]
    words += ["--solver=levenberg-marquardt", "--iterations=60", "--posterior=5"]
    words += ["--next-experiment=next.csv", "--next-speed=3"]
    run = knuckle("fit", made.robot, "odd.csv", *words, *FAST, "--out=out")
    assert run.exit_code == 0, run.output
    data = written(tmp_path / "out")
    for name, truth in (("rod.mass", MASS), ("hinge.damping", DAMPING), ("sensor.q.offset[0]", np.radians(5))):
        assert row(data, name).lower < truth < row(data, name).upper, run.output
    assert data["noise"] == {"q": 0.002} and data["status"] == "converged"
    options = data["options"]
    assert options["free"]["*.mass"] == {"lower": 0.5, "upper": None, "spread": 0.4}
    assert options["free"]["hinge.damping"] == {"lower": None, "upper": 3.0, "spread": None}
    assert options["robust"] == "huber" and options["segment"] == 0.4 and options["held_out"] == 0
    assert options["solver"].startswith("LevenbergMarquardt(max_iterations=60,")
    found = {(f["what"], f["place"]) for f in data["findings"]}
    assert {("ignored", "junk"), ("degrees", "q hinge"), ("no times", "odd")} <= found
    samples = np.loadtxt(tmp_path / "out" / "posterior.csv", delimiter=",", skiprows=1)
    assert samples.shape == (5, 2) and np.all(np.abs(samples[:, 0] - MASS) < 0.2)
    (proposed,) = sysid.read_recordings(tmp_path / "next.csv", kn.load(made.robot))
    assert {"q", "qd", "control"} <= set(proposed.channels) and 1 < np.abs(proposed["qd"].values).max() < 3.3


def test_a_sensor_with_a_scale_and_a_delay(knuckle, tmp_path, made):
    """By 20 ms and 1.2; controls that were taken as held would make the delay 5 ms shorter."""
    late = 1.2 * np.interp(made.t - 0.02, made.t, made.q) + 1e-3 * np.random.default_rng(1).normal(size=SAMPLES)
    write_csv(tmp_path / "late.csv", time=made.t, hinge=late, ctrl_hinge=made.u)
    run = knuckle("fit", made.robot, "late.csv", "--free=*.mass", "--gain=q", "--delay=sensor", "--loss=single", *FAST)
    assert run.exit_code == 0, run.output
    data = written(tmp_path / "runs" / "pole_fit")
    for name, truth in (("rod.mass", MASS), ("sensor.q.gain[0]", 1.2), ("sensor.delay", 0.02)):
        assert row(data, name).lower < truth < row(data, name).upper, run.output
    assert row(data, "sensor.delay").upper - row(data, "sensor.delay").lower < 0.004
    assert data["options"]["loss"] == "single shooting" and data["options"]["drive"] == "linear"


def test_one_step_by_adam_and_a_log_that_is_held_out(knuckle, tmp_path, made):
    for name, part in (("seen.csv", slice(0, 100)), ("unseen.csv", slice(100, None))):
        write_csv(
            tmp_path / name, time=made.t[part], hinge=made.q[part], dq_hinge=made.qd[part], ctrl_hinge=made.u[part]
        )
    words = [
        "--free=*.mass",
        "--loss=one-step",
        "--solver=adam",
        "--iterations=120",
        "--learning-rate=0.01",
        "--batch=80",
    ]
    run = knuckle(
        "fit", made.robot, "seen.csv", "--held-out-log=unseen.csv", *words, *STEPPED, "--drive=linear", "--out=out"
    )
    assert run.exit_code == 0, run.output
    data = written(tmp_path / "out")
    assert row(data, "rod.mass").value == pytest.approx(MASS, rel=0.01)
    assert data["options"]["held_out"] == ["unseen"] and data["held_out"]["pieces"] > 1
    assert data["held_out"]["after"]["q"] < 0.1 * data["held_out"]["before"]["q"]
    assert "Adam(epochs=120, rate=0.01" in data["options"]["solver"]
    assert "1 that the fit does not see" in run.output


def test_pixels_controls_with_a_wrong_clock_and_a_population(knuckle, tmp_path, made):
    """Torques 40 ms late make the mass 7 % less, and a bound keeps the description's own from being the start."""
    pytest.importorskip("pygmo")
    u = np.interp(made.t - 0.04, made.t, made.u)
    pixels = {"cam_u": -500 * np.sin(made.q), "cam_v": -500 * np.cos(made.q)}
    noise = np.random.default_rng(2).normal(size=(2, SAMPLES))
    pixels = {name: values + n for (name, values), n in zip(pixels.items(), noise, strict=True)}
    write_csv(tmp_path / "log.csv", time=made.t, hinge=made.noisy, ctrl_hinge=u, **pixels)
    words = ["--column=cam_u=pixels u", "--column=cam_v=pixels v", f"--observe=pixels={made.folder / 'camera.py'}:tip"]
    words += [
        "--shift=control=-0.04",
        "--free=*.mass=0.2:5",
        "--search=population",
        "--starts=4",
        "--workers=0",
        "--patience=9",
    ]
    run = knuckle("fit", made.robot, "log.csv", *words, *FAST, "--out=out")
    assert run.exit_code == 0, run.output
    data = written(tmp_path / "out")
    assert row(data, "rod.mass").value == pytest.approx(MASS, rel=0.005)
    assert data["noise"]["pixels"] == pytest.approx(1.0, rel=0.2)
    assert data["options"]["search"].startswith("Population(") and "patience=9" in data["options"]["search"]
    assert data["options"]["starts"] == 4
    assert data["options"]["observe"] == {"pixels": f"{made.folder / 'camera.py'}:tip"}
    assert "stamps moved by -0.04 s" in next(f["detail"] for f in data["findings"] if f["what"] == "shifted")


def test_functions_of_a_file_go_to_other_processes(tmp_path):
    """With their text: where the file is not, they work too."""
    observed = Observed("gone.py", "double", "def double(model, state):\n    return 2 * state.q\n")
    assert "2 *" not in repr(observed) and str(observed) == "gone.py:double"
    again = pickle.loads(pickle.dumps(observed))
    assert again(None, SimpleNamespace(q=3.0)) == 6.0


@pytest.fixture(scope="module")
def trained(made):
    """A fit of a network only."""
    folder = made.folder / "net"
    words = ["--free=none", "--network=link/mass", "--inputs=q,previous joint/force", "--hidden=3,2", "--lasso=0.1"]
    words += ["--group-lasso=0.2", "--weight-spread=2", "--solver=lbfgsb", "--iterations=20", "--draws=1"]
    run = CliRunner().invoke(
        app, ["fit", str(made.robot), str(made.log), *words, *map(str, FAST), "--out", str(folder)]
    )
    assert run.exit_code == 0, run.output
    return folder


def test_networks_alone_are_fitted(trained):
    data, hybrid = written(trained), kn.load_hybrid(trained / "model.knuckle")
    assert data["parameters"] == [] and data["options"]["free"] == {}
    assert data["options"]["regularise"] == {"spread": 2.0, "group_lasso": 0.2, "lasso": 0.1}
    assert hybrid.model.inertia.mass[0] == 1.0 and hybrid.dt == pytest.approx(DT)
    assert isinstance(hybrid.integrator, kn.SemiImplicitEuler)
    (augment,) = networks_in(hybrid.blueprint)["link/mass"]
    assert augment.inputs == ("q", "previous joint/force") and augment.network.sizes == (2, 3, 2, 1)
    values = data["search"]["half_sum_of_squares"]
    assert min(values) < 0.5 * values[0]
    assert all(np.any(w) for w in jax.tree.leaves(augment.weights))  # one began at zero


def test_a_hybrid_file_is_where_a_fit_goes_on(knuckle, tmp_path, made, trained):
    file = trained / "model.knuckle"
    with jax.enable_x64(True):
        hybrid = kn.load_hybrid(file)
        blueprint = Learning(["joint/passive_force"]).blueprint(hybrid, 0)
    old, new = (networks_in(b)["link/mass"] for b in (hybrid.blueprint, blueprint))
    assert jax.tree.all(jax.tree.map(np.array_equal, old, new))
    words = ["--free=hinge.damping", "--network=joint/passive_force", "--solver=levenberg-marquardt", "--iterations=3"]
    run = knuckle("fit", file, made.log, *words, "--draws=1", "--drive=linear", "--held-out=0", "--noise=q=0.001")
    assert run.exit_code == 0, run.output
    data, folder = written(tmp_path / "runs" / "model_fit"), tmp_path / "runs" / "model_fit"
    assert data["options"]["integrator"] == "SemiImplicitEuler()" and data["options"]["step"] == pytest.approx(DT)
    assert data["options"]["blueprint"] == ["link/mass", "joint/passive_force"]
    assert {path.name for path in folder.iterdir()} >= {"model.knuckle", "model.xml", "report.html"}
    assert kn.load(folder / "model.xml").inertia.mass[0] == 1.0
    both = kn.load_hybrid(folder / "model.knuckle").blueprint
    assert set(networks_in(both)) == {"link/mass", "joint/passive_force"}
    step = knuckle("export", folder / "model.knuckle", "step.c")
    assert step.exit_code == 0 and "void step(" in (tmp_path / "step.h").read_text()
    plain = knuckle("export", made.robot, "plain.c", "--dt", DT)
    assert plain.exit_code == 0 and "tanh" in (tmp_path / "step.c").read_text()
    assert "tanh" not in (tmp_path / "plain.c").read_text()


def test_a_base_that_floats_and_quaternions_of_another_order(knuckle, tmp_path):
    """A tumbling brick tells gravity, which the description has wrong; its quaternions end with w."""
    (tmp_path / "brick.urdf").write_text(BRICK)
    model = kn.load(tmp_path / "brick.urdf", floating=True)
    lighter = eqx.tree_at(lambda m: m.gravity, model, np.array([0.0, 0.0, -3.7]))
    start = model.state(None, np.array([0.3, 0.1, 2.0, 2.0, 3.0, -1.0]))
    motion = kn.rollout(lighter, start, dt=PERIOD, steps=40, native=True)
    q = np.asarray(motion.q)
    q = np.concatenate([q[:, :3], q[:, 4:], q[:, 3:4]], axis=1)
    np.savez(tmp_path / "log.npz", time=np.asarray(motion.time), qpos=q)
    words = ["--free=world.gravity", "--quaternion=xyzw", "--integrator=semi-implicit", "--step=0.01", "--held-out=0"]
    run = knuckle("fit", "brick.urdf", "log.npz", "--floating", *words, "--noise=q=1e-4", "--out=out")
    assert run.exit_code == 0, run.output
    values = [row(written(tmp_path / "out"), f"world.gravity.{axis}").value for axis in "xyz"]
    np.testing.assert_allclose(values, [0, 0, -3.7], atol=0.01)
    assert "nq 7" in knuckle("info", "brick.urdf", "--floating").output
    assert "it loads with --floating" in knuckle("info", "brick.urdf").stderr
    assert knuckle("export", "brick.urdf", "brick.xml", "--floating").exit_code == 0
    assert kn.load(tmp_path / "brick.xml").nq == 7


def test_contact_is_fitted(knuckle, tmp_path):
    """A ball on springs three times as stiff as expected."""
    (tmp_path / "ball.xml").write_text(BALL)
    model = kn.load(tmp_path / "ball.xml")
    usual = kn.contact.Compliant()
    stiff = eqx.tree_at(lambda c: c.stiffness, usual, 3 * usual.stiffness)
    start = model.state(np.array([0.05]))
    motion = kn.rollout(model, start, dt=0.002, steps=200, contact=stiff, native=True)
    write_csv(tmp_path / "log.csv", time=np.asarray(motion.time)[4::5], height=np.asarray(motion.q)[4::5, 0])
    words = ["--contact=compliant", "--free=contact.stiffness", "--loss=single", "--held-out=0", "--noise=q=1e-5"]
    run = knuckle("fit", "ball.xml", "log.csv", *words, "--out=out")
    assert run.exit_code == 0, run.output
    found = row(written(tmp_path / "out"), "contact.stiffness")
    assert found.before == pytest.approx(usual.stiffness) and found.value == pytest.approx(
        3 * usual.stiffness, rel=0.02
    )
    hybrid = kn.load_hybrid(tmp_path / "out" / "model.knuckle")
    assert isinstance(hybrid.contact, kn.contact.Compliant)
    assert "contact.stiffness" in knuckle("info", "out/model.knuckle").output  # of the file itself
    assert "contact.stiffness" not in knuckle("info", "out/model.knuckle", "--contact=none").output


def test_export_writes_urdf(knuckle, tmp_path, made):
    run = knuckle("export", made.robot, "pole.urdf")
    assert run.exit_code == 0, run.output
    urdf = kn.load(tmp_path / "pole.urdf")
    assert urdf.joint_names == ("hinge",) and urdf.inertia.mass[0] == 1.0
    refused = knuckle("export", made.robot, "pole.urdf", "--dt=0.01")
    assert refused.exit_code == 1 and "--dt, --contact and --integrator are for a .c file" in refused.stderr


def test_patterns_have_bounds_and_spreads():
    texts = ["*.mass=0.5:3~0.1", "*.com~0.02", "a.damping=:3", "b.damping=0:", "*.friction"]
    assert patterns(texts) == {
        "*.mass": kn.Prior(0.5, 3.0, 0.1),
        "*.com": kn.Prior(spread=0.02),
        "a.damping": kn.Prior(upper=3.0),
        "b.damping": kn.Prior(lower=0.0),
        "*.friction": None,
    }
    assert patterns(None) is None and patterns(["none"]) == {}


FORM = "--free takes PATTERN, PATTERN=LOWER:UPPER, PATTERN~SPREAD or PATTERN=LOWER:UPPER~SPREAD"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--free=none", "--free none leaves nothing to fit: give --network, a .knuckle file that has networks"),
        ("--free=none --free=*.mass", "give it alone"),
        ("--free=*.mass --free=*.mass=1:2", "--free: *.mass is given twice"),
        ("--free=*.mass=:", f"{FORM}, got '*.mass=:'"),
        ("--free=*.mass=1:2~", f"{FORM}, got '*.mass=1:2~'"),
        ("--free=*.mass=1:x", f"{FORM} with finite numbers, got '*.mass=1:x'"),
        ("--free=*.mass=2:1", "LOWER must be below UPPER, got '*.mass=2:1'"),
        ("--free=*.mass~0", "SPREAD must be above zero, got '*.mass~0'"),
        ("--noise=q", "--noise takes CHANNEL=VALUE, got 'q'"),
        ("--noise=q=-1", "noise: that of q must be a positive deviation, got -1"),
        ("--noise=control=1", "noise: control is not compared; compared are q"),
        ("--shift=tau=0.1", "--shift: there is no channel tau; there are q, control"),
        ("--shift=q=soon", "--shift takes CHANNEL=SECONDS with finite numbers, got 'q=soon'"),
        ("--shift=q=9", "--shift: q=9 is more than a recording of 1.5 s has"),
        ("--restart=anywhere", "--restart is for --search basin-hopping"),
        ("--patience=2", "--patience must be 1 or more, and is for a global search"),
        ("--solver=lbfgsb --batch=2", "--batch must be 1 or more, and is for --solver adam"),
        ("--step=0", "--step must be a positive number, got 0"),
        ("--segment=-1", "--segment must be a positive number, got -1"),
        ("--max-bytes=10", "more than the limit of 10 (max_bytes=, --max-bytes)"),
        ("--integrator=rk4 --contact=impulse", "contact needs --integrator semi-implicit or implicit, got RK4"),
        ("--iterations=5", "--iterations are those of a solver: give --solver levenberg-marquardt or"),
        ("--solver=adam --iterations=0", "--iterations must be 1 or more, got 0"),
        ("--solver=lbfgsb --learning-rate=1", "--learning-rate is for --solver adam"),
        ("--hidden=3", "--hidden and --inputs are for new networks: give --network too"),
        ("--network=gravity --hidden=3,0", "--hidden takes positive whole numbers with commas between, got '3,0'"),
        ("--network=gravity --inputs=q,nothing", "--inputs: there is no tap 'nothing'; there are time, q"),
        ("--network=gravity --inputs=joint/force", "joint/force is not known before gravity; 'previous joint/force'"),
        ("--network=gravity --inputs=q,", "--inputs takes names with commas between, got 'q,'"),
        ("--network=joint/force --inputs=q", "--inputs: networks at joint/force and joint/passive_force read q and qd"),
        ("--network=joint/force --lasso=1", "--lasso and --group-lasso: sparsity needs networks with a first layer"),
        ("--network=gravity --group-lasso=-1", "--group-lasso must be 0 or more, got -1"),
        ("--network=gravity --weight-spread=0", "--weight-spread must be a positive number, got 0"),
        ("--weight-spread=2", "are for networks: give --network too"),
        ("--held-out=0.2 --held-out-log=other.csv", "--held-out is a share of the logs"),
        ("--held-out-log=LOG", "is among the logs that the fit sees"),
        ("--held-out-log=nothing.csv", "nothing.csv: there is no such file"),
        ("--observe=pixels", "--observe takes CHANNEL=FILE.py:FUNCTION, got 'pixels'"),
        ("--observe=pixels=CAMERA", "--observe takes CHANNEL=FILE.py:FUNCTION, got 'pixels="),
        ("--observe=pixels=nothing.py:tip", "--observe: there is no file nothing.py"),
        ("--observe=pixels=CAMERA:color", "has no function 'color'; it has tip, first, broken"),
        ("--observe=pixels=CAMERA:tip", "observe: pixels is no channel of one's own; the recordings have none"),
        ("--next-experiment=nowhere/next.csv", "--next-experiment: there is no folder nowhere"),
        ("--posterior=1", "--posterior must be 2 or more"),
    ],
)  # fmt: skip
def test_bad_options_are_one_error_that_says_what_was_expected(knuckle, tmp_path, made, words, message):
    places = {"CAMERA": made.folder / "camera.py", "LOG": made.log}
    for name, place in places.items():
        words = words.replace(name, str(place))
    run = knuckle("fit", made.robot, made.log, *words.split(" "))
    assert run.exit_code == 1 and isinstance(run.exception, SystemExit), run.output
    assert message in run.stderr and run.stderr.startswith("error:") and "Traceback" not in run.output
    assert list(tmp_path.iterdir()) == [] and (made.folder / "pole.xml").read_text() == POLE


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "on the command line --observe pixels=FILE.py:FUNCTION"),
        ("--observe=pixels=CAMERA:first", "first must give the 2 numbers of pixels as one array, got shape (1,)"),
        ("--observe=pixels=CAMERA:broken", "camera.py:broken fails: AttributeError: "),
        ("--observe=pixels=broken.py:tip", "broken.py cannot be run: ZeroDivisionError: division by zero ("),
        ("--observe=q=CAMERA:tip", "q is no channel of one's own; the recordings have pixels"),
    ],
)  # fmt: skip
def test_observations_that_do_not_fit_are_refused(knuckle, tmp_path, made, words, message):
    (tmp_path / "broken.py").write_text("a = 0\nb = 1 / a\n")
    write_csv(tmp_path / "log.csv", time=made.t, hinge=made.noisy, ctrl_hinge=made.u, cam_u=made.q, cam_v=made.q)
    columns = ["--column=cam_u=pixels u", "--column=cam_v=pixels v"]
    words = words.replace("CAMERA", str(made.folder / "camera.py")).split()
    run = knuckle("fit", made.robot, "log.csv", *columns, *words)
    assert run.exit_code == 1 and message in run.stderr and "Traceback" not in run.output, run.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--floating"], "--floating, --fixed and --repair-inertia are for URDF and MJCF files"),
        (["--network=link/mass"], "--network: the file has a network at link/mass, which goes on from its weights"),
        (["--contact=impulse", "--integrator=explicit"], "contact needs --integrator semi-implicit or implicit"),
        (["--inputs=q"], "--hidden and --inputs are for new networks"),
    ],
)
def test_what_contradicts_a_hybrid_file_is_refused(knuckle, made, trained, words, message):
    before = (trained / "model.knuckle").read_bytes()
    run = knuckle("fit", trained / "model.knuckle", made.log, *words)
    assert run.exit_code == 1 and message in run.stderr and "Traceback" not in run.output, run.output
    assert (trained / "model.knuckle").read_bytes() == before


@pytest.mark.parametrize("words", [["--delay=q"], ["--quaternion=zyxw"], ["--solver=newton"], ["--integrator=euler"]])
def test_a_word_that_is_none_of_the_choices_is_refused(made, words):
    run = CliRunner().invoke(app, ["fit", str(made.robot), str(made.log), *words], env=WIDE)
    assert run.exit_code == 2 and "is not one of" in run.stderr


def test_help_shows_every_option_in_a_group():
    text = CliRunner().invoke(app, ["fit", "--help"], env=WIDE).output
    groups = [
        "Robot and simulation",
        "Logs",
        "What is fitted",
        "Networks",
        "How it is compared",
        "Search",
        "How sure",
        "Results",
    ]
    places = [text.index(f"─ {group} ─") for group in groups]
    assert places == sorted(places) and text.index("Options") < places[0]
    assert "--help" in text[: places[0]] and "--free" not in text[: places[0]]
    assert "[deg]" in text and "[rad/s" in text  # not taken for markup
