"""The commands fit, demo, info and export, as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from typer.testing import CliRunner

import knuckle as kn
from knuckle import robots, sysid
from knuckle.cli import app
from knuckle.cli_folder import MARK
from knuckle.cli_networks import networks
from knuckle.cli_run import Display
from knuckle.interrupt import Interrupts
from knuckle.sysid import demo
from knuckle.sysid.solve import Look

TRUTH = {"upper.mass": 1.38, "lower.mass": 0.6375}
FILES = {"model.knuckle", "double_pendulum.xml", "fit.json", "report.html"}


@pytest.fixture
def knuckle(tmp_path, monkeypatch):
    """Runs the command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """Two short runs of a double pendulum with other masses and noise of 1 mrad."""
    model = robots.load("double_pendulum")
    truth = eqx.tree_at(lambda m: m.inertia.mass, model, np.array(list(TRUTH.values())))
    rng, rows = np.random.default_rng(0), []
    for number, start in enumerate(([1.0, 0.5], [-0.7, 0.9])):
        motion = kn.rollout(
            truth, model.state(np.array(start)), dt=0.002, steps=500, integrator=kn.RK4(), contact=None, native=True
        )
        q = np.asarray(motion.q)[4::5] + 1e-3 * rng.normal(size=(100, 2))
        rows.append(np.column_stack([np.full(100, number), 0.01 * np.arange(100), q]))
    path = tmp_path_factory.mktemp("log") / "swing.csv"
    np.savetxt(path, np.concatenate(rows), delimiter=",", header="episode,time,shoulder,elbow", comments="")
    return path


class Page(HTMLParser):
    """Tags that are open, what they refer to, and the text."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.references, self.tags, self.words = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.references += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def check_page(path: Path, *words: str) -> None:
    """It is well formed, needs nothing from outside and no script, and says these words."""
    page = Page(path.read_text())
    assert page.open == [] and "script" not in page.tags and "link" not in page.tags
    assert page.references and all(r.startswith("data:image/svg+xml;base64,") for r in page.references)
    text = " ".join(page.words)
    assert all(word in text for word in words), text


def test_fit_writes_a_folder_that_other_tools_read(knuckle, tmp_path, log):
    run = knuckle("fit", "double_pendulum", log, "--free", "*.mass=0.1:5", "--out", "out")
    assert run.exit_code == 0, run.output
    folder = tmp_path / "out"
    assert {path.name for path in folder.iterdir()} == FILES | {MARK}
    data = json.loads((folder / "fit.json").read_text())
    for row in data["parameters"]:
        assert row["lower"] < TRUTH[row["name"]] < row["upper"] and row["verdict"] == "determined"
    assert data["held_out"]["after"]["q"] < 0.1 * data["held_out"]["before"]["q"]
    assert data["status"] == "converged" and data["search"]["half_sum_of_squares"]
    assert 0.8 < data["residuals"]["q"]["deviation"] < 1.2  # noise is set to what is left, to 5 %
    fitted = kn.load(folder / "double_pendulum.xml")
    hybrid = kn.load_hybrid(folder / "model.knuckle")
    np.testing.assert_allclose(fitted.inertia.mass, [row["value"] for row in data["parameters"]], rtol=1e-12)
    np.testing.assert_array_equal(hybrid.model.inertia.mass, [row["value"] for row in data["parameters"]])
    assert hybrid.dt == pytest.approx(0.005)
    assert "upper.mass" in run.output and "episodes" in run.output  # findings in the log are shown
    check_page(folder / "report.html", "upper.mass", "determined", "predicted over", "episodes")


def test_a_urdf_stays_a_urdf_and_a_network_is_kept(knuckle, tmp_path, log):
    (tmp_path / "arm.urdf").write_text(_urdf())
    words = ("--free", "*.mass", "--network", "joint/passive_force", "--keep-networks", "--draws", 1, "--out", "out")
    run = knuckle("fit", "arm.urdf", log, *words, "--solver", "levenberg-marquardt", "--iterations", 3)
    assert run.exit_code == 0, run.output
    assert kn.load(tmp_path / "out" / "arm.urdf").name == "arm"
    hybrid = kn.load_hybrid(tmp_path / "out" / "model.knuckle")
    assert hybrid.blueprint is not None and list(hybrid.blueprint.augments) == ["joint/passive_force"]
    data = json.loads((tmp_path / "out" / "fit.json").read_text())
    (network,) = data["networks"]
    assert [curve["joint"] for curve in network["curves"]] == ["shoulder", "elbow"]
    for curve in network["curves"]:  # it only takes energy
        assert np.all(np.array(curve["speed"]) * np.array(curve["output"]) <= 0)
    check_page(tmp_path / "out" / "report.html", "Networks", "Dissipative")


def _urdf() -> str:
    """A double pendulum as a URDF."""

    def link(name: str) -> str:
        inertia = '<inertia ixx="0.02" iyy="0.02" izz="0.01" ixy="0" ixz="0" iyz="0"/>'
        inertial = f'<inertial><origin xyz="0 0 -0.4"/><mass value="1"/>{inertia}</inertial>'
        return f'<link name="{name}">{inertial}</link>'

    def joint(name: str, parent: str, child: str, height: float) -> str:
        ends = f'<parent link="{parent}"/><child link="{child}"/><origin xyz="0 0 {height}"/><axis xyz="0 1 0"/>'
        return f'<joint name="{name}" type="continuous">{ends}</joint>'

    parts = (
        link("upper"),
        link("lower"),
        joint("shoulder", "base", "upper", 0),
        joint("elbow", "upper", "lower", -0.5),
    )
    return f'<robot name="arm"><link name="base"/>{"".join(parts)}</robot>'


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hexapod", "LOG"], "built in are acrobot, arm, cartpole"),
        (["double_pendulum", "nowhere.csv"], "nowhere.csv: there is no such file"),
        (["double_pendulum", "broken.npz"], "broken.npz: cannot be read as npz"),
        (["cartpole", "LOG"], "no place for 2 of 4 columns: shoulder, elbow"),
        (
            ["double_pendulum", "LOG", "--free=*.colour"],
            "nothing is called '*.colour'; there are mass, com, inertia of upper, lower; ",
        ),
        (["double_pendulum", "LOG", "--free=*.mass=1"], "--free takes PATTERN, PATTERN=LOWER:UPPER"),
        (["double_pendulum", "LOG", "--network=joint/torque"], "--network: there is no tap 'joint/torque'"),
        (["double_pendulum", "LOG", "--network=time"], "--network: there is no tap 'time' to act on"),
        (["double_pendulum", "LOG", "--network=qd"], "choose a later tap"),
        (["double_pendulum", "LOG", "--column=shoulder"], "--column takes NAME=MEANING"),
        (["double_pendulum", "LOG", "--held-out=1"], "--held-out must be 0 or more and below 1"),
        (["double_pendulum", "LOG", "--seconds=0"], "--seconds must be a positive number"),
        (
            ["double_pendulum", "LOG", "--offset=pixels"],
            "offsets must be of channels that are compared (q), got pixels",
        ),
        (["double_pendulum", "LOG", "--resume"], "there is no saved search at"),
        (["double_pendulum", "LOG", "--workers=2"], "--workers and --ray are for a global search"),
        (["double_pendulum", "LOG", "--starts=8"], "--starts, --workers and --ray are for a global search"),
        (["double_pendulum", "LOG", "--rate=0"], "--rate must be a positive number"),
        (["double_pendulum", "LOG", "--search=population", "--starts=0"], "--starts must be 1 or more"),
        (["double_pendulum", "LOG", "--out=broken.npz"], "--out: cannot make the folder broken.npz"),
    ],
)
def test_bad_input_is_one_error_without_a_traceback(knuckle, tmp_path, log, words, message):
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    run = knuckle("fit", *(str(log) if word == "LOG" else word for word in words))
    assert run.exit_code == 1 and isinstance(run.exception, SystemExit), run.output
    assert message in run.stderr and run.stderr.startswith("error:") and "Traceback" not in run.output
    assert not list(tmp_path.rglob("fit.json"))


INTERRUPT_AT_THE_FOURTH_LOOK = """
import os, signal
from knuckle import cli, cli_run

watch = cli_run.Display.watch

def interrupted(self, look):
    if len(self.points) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    watch(self, look)

cli_run.Display.watch = interrupted
cli.main()
"""


def test_interrupted_it_writes_the_best_so_far_and_goes_on_from_there(knuckle, tmp_path, log):
    words = ["fit", "double_pendulum", str(log), "--free=*.mass", "--out", str(tmp_path / "out")]
    run = subprocess.run([sys.executable, "-c", INTERRUPT_AT_THE_FOURTH_LOOK, *words], capture_output=True, text=True)
    assert run.returncode == 130 and "Traceback" not in run.stderr, run.stderr
    assert "the best that was found until then; --resume goes on from there" in run.stderr
    data = json.loads((tmp_path / "out" / "fit.json").read_text())
    values = data["search"]["half_sum_of_squares"]
    assert data["status"] == "interrupted" and len(values) in (4, 5)
    assert data["half_sum_of_squares"] == min(values[: len(values) - 1]) < values[0]
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES | {"checkpoint.npz", MARK}
    assert knuckle(*words, "--resume").exit_code == 0
    data = json.loads((tmp_path / "out" / "fit.json").read_text())
    assert data["status"] == "converged" and data["search"]["half_sum_of_squares"][0] < values[1]
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES | {MARK}


def test_the_time_left_is_unknown_unless_a_limit_or_a_pace_tells_it():
    free, limited = Display(None, Interrupts()), Display(60.0, Interrupts())
    assert free.time_left() == "time left unknown" and limited.time_left() == "at most 60 s left"
    free.watch(Look(3.0, 2.0))
    assert free.time_left() == "time left unknown"
    for display, left in ((free, "about 90 s left"), (limited, "about 60 s left")):
        display.watch(Look(3.0, 2.0, seconds_left=90.0, searches=8))
        assert display.time_left() == left
    shown = " ".join(str(part) for part in free.__rich__().renderables)
    assert "loss 3" in shown and "best 2" in shown and "about 90 s left" in shown


def test_what_is_shown_of_a_search_is_in_units_of_noise_and_channels():
    """Other weights in a later round change neither, and the least so far never grows."""
    display = Display(None, Interrupts())
    for value, rms in ((1e15, 0.3), (20.0, 0.02), (7e7, 0.05)):
        display.watch(Look(value, value, rms={"q": rms}, relative=rms / 1e-3))
    assert display.residuals() == ["residual 50 x noise (RMS: q 0.05)", "least 20 x noise"]


def test_networks_fit_the_shapes_of_taps(tmp_path):
    """Of a vector, of rows of several numbers, of coordinates that have quaternions among them."""
    (tmp_path / "arm.urdf").write_text(_urdf())
    model = kn.load(tmp_path / "arm.urdf", floating=True)
    assert model.nq == model.nv + 1
    taps = ["gravity", "link/com", "joint/force", "next/q", "next/state"]
    blueprint = networks(model, taps, None, 0)
    after = jax.eval_shape(lambda b: kn.step(model, model.state(), dt=0.002, blueprint=b), blueprint)
    assert blueprint is not None and set(blueprint.augments) == set(taps)
    assert after.q.shape == (model.nq,)


def test_the_demo_says_how_its_log_was_made():
    assert demo.MADE_BY in demo.LOG.read_text().splitlines()[0]
    recordings = sysid.read_recordings(demo.LOG, robots.load("double_pendulum"))
    assert {finding.action for finding in recordings.report} <= {"note", "repaired"}
    assert len(recordings) == 8 and all(set(r.channels) == {"q"} for r in recordings)


def test_the_demo_finds_the_truth_behind_its_log(knuckle, tmp_path):
    """As the README runs it, for as long as it takes: a limit of time would leave nothing on a slow machine."""
    run = knuckle("demo")
    assert run.exit_code == 0, run.output
    folder = tmp_path / "runs" / "demo"
    assert {path.name for path in folder.iterdir()} >= FILES
    data = json.loads((folder / "fit.json").read_text())
    assert data["options"]["seconds"] is None
    truth = np.asarray(robots.load("double_pendulum").inertia.mass) * demo.MASS_FACTORS
    assert [row["name"] for row in data["parameters"]] == ["upper.mass", "lower.mass"]
    for row, mass in zip(data["parameters"], truth, strict=True):
        assert row["lower"] < mass < row["upper"] and row["upper"] - row["lower"] < 0.1 * mass
        assert f"{row['name']} {mass:.4g} kg" in run.output  # it says what the truth is
    assert data["held_out"]["after"]["q"] < 0.1 * data["held_out"]["before"]["q"]
    assert data["networks"][0]["tap"] == "joint/passive_force"


@pytest.mark.parametrize("robot", ["arm", "cartpole", "double_pendulum", "hopper", "quadruped"])
def test_info_names_joints_parameters_and_taps(knuckle, robot):
    run = knuckle("info", robot)
    model = robots.load(robot)
    assert run.exit_code == 0, run.output
    words = (*model.joint_names, *model.actuators.names, "*.mass", "*.damping", "joint/force", "next/state")
    assert all(word in run.output for word in words), run.output
    assert ("*.gain" in run.output) == (model.nu > 0)


def test_info_with_contact_has_its_parameters_and_taps(knuckle):
    output = knuckle("info", "quadruped", "--contact", "compliant").output
    assert "contact.stiffness" in output and "contact/normal_force" in output


@pytest.mark.parametrize("name", ["copy.xml", "copy.mjcf"])
def test_export_writes_a_file_that_loads(knuckle, tmp_path, name):
    assert knuckle("export", "cartpole", name).exit_code == 0
    np.testing.assert_allclose(kn.load(tmp_path / name).inertia.mass, robots.load("cartpole").inertia.mass, rtol=1e-12)


def test_export_writes_the_step_as_c(knuckle, tmp_path):
    run = knuckle("export", "double_pendulum", "pendulum_step.c", "--dt", "0.002")
    assert run.exit_code == 0, run.output
    assert "void pendulum_step(" in (tmp_path / "pendulum_step.h").read_text()
    assert {"pendulum_step.c", "example.c", "CMakeLists.txt"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("arm.stl", "OUT must end in .urdf, .xml, .mjcf or .c"),
        ("nowhere/arm.c", "there is no folder nowhere"),
        ("my-arm.c", "for example my_arm.c"),
    ],
)
def test_export_explains_what_it_refuses(knuckle, target, message):
    run = knuckle("export", "double_pendulum", target)
    assert run.exit_code == 1 and message in run.stderr and "Traceback" not in run.output
