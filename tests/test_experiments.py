"""Every experiment runs with --quick, and what it computes is right."""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import knuckle as kn

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))

MODELS = Path(__file__).parents[2] / "shared" / "benchmark_models"
needs_models = pytest.mark.skipif(not MODELS.exists(), reason=f"the mechanisms of {MODELS} are not here")


def test_all_ways_to_a_gradient_agree():
    """Forward, reverse and native to rounding; one-sided differences with h = 1e-7 to about 1e-5."""
    rows = importlib.import_module("gradient_times").main(["--quick"])
    for problem in {row["problem"] for row in rows}:
        gradients = {row["method"]: np.array(row["gradient"]) for row in rows if row["problem"] == problem}
        exact = gradients.pop("reverse")
        scale = np.abs(exact).max()
        np.testing.assert_allclose(gradients.pop("finite differences"), exact, atol=1e-4 * scale, err_msg=problem)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(gradient, exact, atol=1e-9 * scale, err_msg=f"{problem}, {name}")


def test_code_and_work_of_the_compiler_grow_no_faster_than_the_program():
    """Operations and bytes, which do not depend on what else the machine does; what the times are is in the results."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    growth = importlib.import_module("compile_growth")
    rows = growth.main(["--quick"])
    for name in growth.PROGRAMS:
        own = [row for row in rows if row["program"] == name]
        # from 4 to 8 links a chain also leaves the plane, and products with structural zeros become full
        assert growth.exponent(own, "operations") < 1.7, name
        if name.startswith("calls"):
            assert growth.exponent(own, "bytes") < 0.5, name


def test_free_flight_tells_centre_of_mass_scale_and_start_of_a_toss():
    """Exact flights of a cube whose lengths were recorded 2 % short: 1e-9 is rounding through the fits."""
    tosses = importlib.import_module("cube_tosses")
    rng, com, short = np.random.default_rng(0), np.array([1e-3, -2e-3, 5e-3]), 0.98
    recorded, starts = [], []
    for _ in range(5):
        t, turn, spin = np.arange(15)[:, None] / tosses.RATE, Rotation.random(rng=rng), rng.normal(size=3) * 8
        velocity, R = rng.normal(size=3), Rotation.from_rotvec(t * spin) * turn
        centre = [0, 0, 1] + velocity * t - [0, 0, tosses.GRAVITY / 2] * t**2
        body_spin = np.tile(turn.inv().apply(spin), (15, 1))
        origin = short * (centre - R.apply(com))
        recorded.append(np.hstack([origin, R.as_quat()[:, [3, 0, 1, 2]], np.zeros((15, 3)), body_spin]))
        starts.append(np.concatenate([velocity - np.cross(spin, turn.apply(com)), body_spin[0]]))
    body = tosses.identify(recorded)
    assert abs(body.scale * short - 1) < 1e-9
    np.testing.assert_allclose(body.com, com, atol=1e-9)
    packed = tosses.packed(recorded, body)
    np.testing.assert_allclose(packed.qd, starts, atol=1e-9)
    np.testing.assert_allclose(packed.q[:, :3], [toss[0, :3] / short for toss in recorded], atol=1e-9)


def test_tosses_of_a_real_cube_are_fitted_by_both_engines(capsys):
    """Both engines find parameters at least 5 % better than those they started from, and predict tosses they never saw.

    A cube that stayed where it was last seen in flight would on average be 1.2 widths and 25 degrees off.
    """
    tosses = importlib.import_module("cube_tosses")
    if not tosses.data_file().exists():
        pytest.skip(f"the recorded tosses are not at {tosses.data_file()}: set KNUCKLE_DATA")
    rows = tosses.main(["--quick"])
    assert [row["engine"] for row in rows] == ["Compliant", "MuJoCo"]
    for row in rows:
        assert row["loss"] < 0.95 * row["start_loss"], row["engine"]
        assert 0 < np.mean(row["test"]["position"]) < 0.3
        assert 0 < np.mean(row["test"]["rotation"]) < 20
    assert "rotation - MuJoCo's" in capsys.readouterr().out


def test_a_chains_mass_shows_in_the_motion_and_both_gradients_agree():
    """Each step leads towards the true mass; central differences with h = 1e-5 are good to about 1e-6 here."""
    inference, times = importlib.import_module("chain_mass").main(["--quick"])
    for start in {row["start"] for row in inference}:
        own = [row for row in inference if row["start"] == start]
        masses, losses = ([row[name] for row in own] for name in ("mass", "loss"))
        assert np.all(np.diff(np.abs(np.array(masses) - 7.0)) < 0) and np.all(np.diff(losses) < 0)
    for row in times:
        exact = np.array(row["analytic_gradient"])
        np.testing.assert_allclose(row["numeric_gradient"], exact, atol=1e-4 * np.abs(exact).max())


@needs_models
def test_contact_on_robot_files_is_timed_beside_mujoco():
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    found = importlib.import_module("contact_scale").main(["quadruped", "--quick"])
    assert all(row["solved"] for row in found["steps"])
    assert max(row["most pushing"] for row in found["steps"]) >= 4
    assert [claim["wanted"] for claim in found["claims"]] == [2.0, 2.0]


def test_piles_of_boxes_are_timed_beside_mujoco():
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    found = importlib.import_module("contact_stacks").main(["--quick"])
    assert all(row["steps solved"] == row["steps"] for row in found["steps"])
    assert max(row["most pushing"] for row in found["steps"]) >= 8
    assert [claim["wanted"] for claim in found["claims"]] == [1.0, 1.0, 30.0]


@needs_models
def test_contact_is_timed_beside_mujoco():
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    rows = importlib.import_module("contact_speed").main(["--quick"])
    assert {row["name"].split(",")[0].split()[0] for row in rows} == {"knuckle", "MuJoCo"}
    assert all(row["us"] > 0 for row in rows)


def test_contacts_that_push_are_timed_beside_mujoco():
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    found = importlib.import_module("contact_active").main(["--quick"])
    assert [row["most pushing"] for row in found["rows"]] == [1, 4, 1, 4]
    assert all(row["solved"] and row["times"] > 0 for row in found["rows"])
    assert [set(claim) for claim in found["claims"]] == [{"what", "measured", "wanted", "holds"}] * 4


def test_solvers_of_contact_are_timed_side_by_side():
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    found = importlib.import_module("contact_solvers").main(["--quick"])
    assert {row["solver"] for row in found["rows"]} == {"newton", "gauss_seidel", "interior point"}
    assert all(claim["holds"] for claim in found["claims"])


def test_native_linear_algebra_is_timed_beside_lapack():
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    result = importlib.import_module("linear_algebra").main(["--quick"])
    assert all(row["native"] > 0 and row["lapack"] > 0 for row in result["rows"])
    assert all(c["holds"] for c in result["claims"] if "residual" in c["what"] or "operations" in c["what"])


@needs_models
def test_a_step_with_a_network_is_timed_beside_one_without():
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    rows = importlib.import_module("hybrid_speed").main(["--quick"])
    assert len(rows) == 3 and all(row["us"] > 0 for row in rows)


def test_lengths_of_a_double_pendulum_are_found_from_every_start():
    """Loss and gradient of a correct model as published; hopping ends at the truth from every start, one search not."""
    hopping = importlib.import_module("basin_hopping")
    truth = np.asarray(hopping.motion(hopping.TRUTH, 1 / 240, 500))

    def loss(lengths):
        return jnp.sum((hopping.motion(lengths, 1 / 240, 500) - truth) ** 2)

    value, gradient = kn.native.jit(jax.value_and_grad(loss))(np.array([5.0, 5.0]))
    assert abs(float(value) - 84.82658537) < 1e-8  # printed with 8 digits after the point
    np.testing.assert_allclose(gradient, [39.984267, 40.576331], atol=1e-6)  # with 6
    (found,) = hopping.main(["--quick"])
    distance = {name: np.array([row["distance"] for row in rows]) for name, rows in found["maps"].items()}
    assert len(distance["hopping"]) == 100 and distance["hopping"].max() < 1e-3
    assert max(row["searches"] for row in found["maps"]["hopping"]) <= 64
    assert distance["local"].max() > 1 and distance["lbfgs"].max() > 1


def test_errors_of_contact_fall_with_the_step():
    """Semi-implicit Euler is of first order: over two decades of the step errors fall by about 100, at least by 30."""
    rows = importlib.import_module("contact_convergence").main(["--quick"])
    assert {row["solver"] for row in rows} == {"Impulse", "MuJoCo"}
    for scene, part in (("block", "value"), ("ball", "value"), ("ball", "slope"), ("chain", "value")):
        errors = [row[part] for row in rows if (row["scene"], row["solver"]) == (scene, "Impulse")]
        assert errors[-1] < errors[0] / 30, (scene, part, errors)
    finest = {row["scene"]: row["value"] for row in rows if row["solver"] == "MuJoCo"}
    assert finest["block"] < 1e-4 and finest["ball"] < 1e-2  # the same block stops at the same place


def test_joint_friction_is_learned_by_a_network_inside_the_pendulum():
    """After 25 iterations the log is fitted to about its noise, and a swing never seen ten times better than before."""
    friction = importlib.import_module("joint_friction")
    found = friction.summary(friction.main(["--quick"]))
    assert found["fit"] < 1.2 * friction.NOISE
    assert found["after"] < 0.1 * found["before"]
    assert found["friction_misfit"] < 0.3


def test_a_real_pendulum_is_predicted_better_than_by_its_published_fit():
    """Fitted to one swing-up, the motion of five other runs is at least twice as near as by the published numbers."""
    pendulum = importlib.import_module("simple_pendulum")
    try:
        pendulum.datasets.find("dfki_simple_pendulum")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    found = pendulum.main(["--quick"])
    for what, ratio in (("torque", 1.0), ("motion", 0.5)):
        ours, theirs = (found[what][name] for name in (pendulum.ONE_RUN, pendulum.PUBLISHED))
        assert len(ours) == 5 and all(np.mean(ours[run]) < ratio * np.mean(theirs[run]) for run in ours), what


def test_gravity_in_the_video_of_a_double_pendulum_points_along_x():
    """Of the energy that is kept best, terms across x are within 1 % of those along x."""
    video = importlib.import_module("double_pendulum_data")
    try:
        runs = video.load()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    across, along = np.split(video.energy_weights(runs[:4]), 2)
    assert np.all(along < 0) and np.all(np.abs(across) < 0.01 * np.abs(along).max())
    assert abs(91 * video.second_arm(runs) - 70) < 1  # as published [mm]


def test_a_real_double_pendulum_is_identified_from_video():
    """Ten pieces of 0.1 s tell enough to predict 0.25 s to within 5 mm; an LSTM of one update knows nothing yet."""
    video = importlib.import_module("double_pendulum_video")
    try:
        video.data.load()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    rows = video.main(["--quick"])
    errors = {name: np.mean(row["errors"], axis=0)[0] for name, row in rows.items()}
    assert errors[video.ANALYTIC] < 5 < errors[video.RECURRENT]
    assert video.PEER not in errors or errors[video.PEER] < 50


def test_an_identification_ends_where_that_of_mujoco_does():
    """Same residuals, same first guess: 11 parameters agree to what finite differences of 1e-8 leave."""
    if not hasattr(pytest.importorskip("mujoco.sysid"), "optimize"):
        pytest.skip('mujoco.sysid lacks what it needs: pip install "mujoco[sysid]"')
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    rows = importlib.import_module("sysid_speed").main(["--quick"])
    np.testing.assert_allclose(rows["knuckle"].values, rows["mujoco.sysid"].values, rtol=1e-4)
    assert all(row.seconds > 0 for row in rows.values())


def test_intervals_hold_a_known_truth():
    """48 intervals of 95 %: fewer than 40 inside has a chance of 1e-3 even if errors of one log go together."""
    known = importlib.import_module("known_truth")
    found = known.counts(known.main(["--quick"])[0])
    assert found["runs"] == 8 and found["determined"] == found["quantities"] == 6
    assert found["covered"] > 40 / 48 and found["near"] > 0.95
    assert 0.6 < found["spread"] < 1.5


def test_a_study_goes_on_where_it_was_and_may_be_shared(tmp_path, monkeypatch):
    known = importlib.import_module("known_truth")
    made, path = [], tmp_path / "kept.json"
    about = {"about": "a", "log": "b", "names": ["x.mass"], "before": [1.0], "words": [], "rows": {}}

    def studied(mechanism, seeds):
        for seed in seeds:
            made.append(seed)
            yield seed, {"truth": [2.0], "off": [0.01 * seed], "deviation": [0.05]}, [f"words of {seed}"]

    monkeypatch.setattr(known, "MECHANISMS", {"one": lambda: SimpleNamespace(truths=6)})
    monkeypatch.setattr(known, "described", lambda mechanism: about)
    monkeypatch.setattr(known, "studied", studied)
    for seeds in ((4, 6), (0, 3), None, (0, 6)):
        known.extend(path, "one", seeds)
    assert made == [4, 5, 0, 1, 2, 3]
    study = json.loads(path.read_text())["studies"]["one"]
    assert list(study["rows"]) == ["0", "1", "2", "3", "4", "5"] and study["words"] == ["words of 0"]
    found = known.counts(study)
    assert found["runs"] == 6 and found["determined"] == 1
    assert found["near"] == pytest.approx(2 / 6) and found["covered"] == 1  # off by 0, 0.5, 1 .. 2.5 % of 2
    monkeypatch.setattr(known, "described", lambda mechanism: {**about, "log": "longer"})
    with pytest.raises(ValueError, match="holds runs of another one: a, b; delete it"):
        known.extend(path, "one", (0, 6))


def test_a_proposed_motion_shows_what_a_gentle_one_does_not():
    excitation = importlib.import_module("excitation")
    rows = excitation.summary(excitation.main(["--quick"]))
    assert rows["proposed"]["times"] > 5
    assert rows["proposed"]["times"] > 2 * rows["repeated"]["times"]


def test_the_torque_regression_of_a_real_arm_is_ahead_of_ordinary_least_squares():
    """Bounds are those of the experiment's claims, on one judged log."""
    from knuckle.sysid import datasets

    pytest.importorskip("pinocchio")
    try:
        datasets.find("ur10e")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    found = importlib.import_module("ur10e")
    claims = [c for c in found.claims(found.main(["--quick"])) if c["what"] != "seconds"]
    assert len(claims) == 3 and all(c["holds"] for c in claims), claims


def test_faults_put_into_clean_logs_are_found():
    """Some of the variants of simulated logs; the whole experiment has real ones, of which some are not found."""
    found = importlib.import_module("faulty_logs").main(["--quick"])
    assert [row["fault"] for row in found["variants"] if not row["right"]] == []
    assert found["clean"] and all(claim["holds"] for claim in found["claims"])


def test_predictions_of_a_simulated_arm_hold():
    """42 positions of six windows of one log: they go together, so at least 70 % must lie within 95 % intervals."""
    found = importlib.import_module("prediction").main(["--quick"])
    for row in found["arm"].values():
        assert row["cases"] == 42 and row["covered"] > 0.7 and row["diverged"] == 0
        assert 0.3 * row["error"] < row["half width"] < 10 * row["error"]


def test_predictions_of_a_model_without_friction_hold_with_errors_of_the_effort():
    """Of 16 positions at least 10 with these errors, and at most half without them."""
    row = importlib.import_module("known_truth_robust").missing_friction(1)
    assert row["cases"] == 16 and row["inside"] >= 10 and row["inside without"] <= 8


def test_a_payload_on_a_simulated_arm_is_found_and_nothing_else():
    """One seed each of a payload on the hand and of nothing: both right, and the mass within its interval."""
    changed = importlib.import_module("what_changed")
    found = changed.main(["--quick"])["simulated"]
    assert set(found) == {"payload on hand", "nothing"}
    assert all(case.right for cases in found.values() for case in cases)
    (case,) = found["payload on hand"]
    assert case.interval[0] <= changed.MASS <= case.interval[1]


def test_kept_results_of_changes_read_back_give_the_same_claims():
    changed = importlib.import_module("what_changed")
    case = changed.Case(("payload", "hand"), [("payload", "hand")], 0, 1.0, (0.9, 1.1), "a")
    nothing = changed.Case(None, [("zero", "elbow")], 1, float("nan"), (float("nan"),) * 2, "b")
    gains = {"elbow": (1.1, 1.0, 1.2)}
    row = {"right": True, "interval": (2.4, 2.5), "gains": gains, "drifts": 0.0, "share": 0.9}
    found = {
        "simulated": {"payload on hand": [case], "nothing": [nothing]},
        "gains": {"inside": 1.0, "cases": 7, "determined": 1.0},
        "load": {"x": row, "y": {**row, "interval": (2.55, 2.65)}},
        "nothing": [nothing],
        "planted": [case],
    }
    again = changed.restored(json.loads(json.dumps(found)))
    assert changed.claims(again) == changed.claims(found)
    holds = {c["what"]: c["holds"] for c in changed.claims(found)}
    assert holds["simulated arm: right answer"] and not holds["simulated arm, nothing changed: false alarms"]
    assert not holds["UR10e: width of the interval that all pairs share [kg]"]


def test_a_planted_spring_is_named_and_claims_follow_from_the_runs():
    """One seed on a driven pendulum; a false alarm or a wrong formula shows in the claims."""
    planted = importlib.import_module("planted_effects")
    (run,) = planted.main(["--quick"])["runs"].values()
    assert run["place"] and run["formula"] and run["effects"] == ["spring at hinge"]
    none = {"place": False, "formula": False, "effects": ["spring at hinge"]}
    holds = [c["holds"] for c in planted.claims({"pendulum: spring:0": run, "pendulum: nothing:0": none})]
    assert holds == [True, True, False]


def test_claims_of_discovery_follow_from_the_runs():
    discovery = importlib.import_module("discovery")
    good = {"sparse_after_15": True, "sparse_at_end": True, "named": True, "off": [0.01, 0.0], "covered": [True, True]}
    bad = good | {"sparse_after_15": False, "off": [0.03, 0.0], "covered": [False, True]}
    rows = [{"seconds": 1.0, "hybrid": 1e-4, "network": 0.1}]
    assert all(c["holds"] for c in discovery.claims({"0.2 and 0.1:0": good, "0.2 and 0.1:1": good}, rows))
    failed = [c["what"] for c in discovery.claims({"0.2 and 0.1:0": bad}, rows) if not c["holds"]]
    assert len(failed) == 3 and "sparse after 15 steps" in failed[0]


def test_an_arm_is_recovered_from_the_path_of_its_tool_and_a_circle_needs_one_joint():
    found = importlib.import_module("arm_design").main(["--quick"])
    assert all(claim["holds"] for claim in found["claims"])


def test_cartpoles_swing_up_from_random_starts():
    """Planned in Knuckle, executed and held in MuJoCo: all of the few starts of the quick run."""
    found = importlib.import_module("swing_up").main(["--quick"])
    assert [claim["holds"] for claim in found["claims"]] == [True]
    assert len(found["tasks"]["cartpole"]) == 4


def test_a_cartpole_with_wrong_masses_is_learned_while_it_is_controlled():
    """MuJoCo's Euler at 1 ms against our Runge-Kutta at 50 ms: masses agree to a percent, as integrators differ."""
    found = importlib.import_module("adaptive_mpc").main(["--quick"])
    assert abs(found["mass"] / found["truth"] - 1) < 0.01
    assert found["error"] < 0.02
