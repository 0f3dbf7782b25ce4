"""Statements of the pages on fits, networks and optimisation, with their evidence (see test_statements.py).

An evidence is a test, a kept result (a figure of it: `FILE#KEY:KEY=VALUE`, rounded as on the page), a constant of the
code, or `LISTS` and `CAUTION`, which say why none is needed.
"""

from __future__ import annotations

LISTS = "a list of what there is"  # no statement about how good it is
CAUTION = "a caution: the page promises less, not more"
BLOCKS = "tests/test_docs.py::test_blocks_run_and_print_what_the_page_says"
SYSID, OPTIM, CLI = "tests/sysid/", "tests/optim/", "tests/test_cli_"
REGRESS, CHANGES = SYSID + "regression/", SYSID + "changes/test_find_changes.py::"
DISCOVER = SYSID + "discovery/"
TRUTH = "experiments/results/known_truth.json"
PENDULUM, VIDEO = "experiments/results/simple_pendulum.md", "experiments/results/double_pendulum_video.md"
SPEED = "benchmarks/results/sysid_speed.json"
SEARCH = SYSID + "test_fit_search.py::"
TUNED = "tests/optim/test_local.py::test_robust_losses_are_95_percent_as_sharp_as_squares_on_pure_noise"

FITS: dict[str, dict[str, tuple[str, ...]]] = {
    "docs/fit.md": {
        "trained on the residual torques of the regression": (
            SYSID + "test_residual_networks.py::test_a_network_that_explains_torques_is_kept",
        ),
        "returns a model that agrees with them": (SYSID + "test_fit_truth.py::", TRUTH),
        "it shows the residual and the time left": (LISTS,),
        "The residual is a root mean square": (
            CLI + "fit.py::test_what_is_shown_of_a_search_is_in_units_of_noise_and_channels",
        ),
        "or from `--seconds` (`at most`)": (
            CLI + "fit.py::test_the_time_left_is_unknown_unless_a_limit_or_a_pace_tells_it",
        ),
        "up to 24 entries, at most 300 samples of a segment": (
            "knuckle.sysid.report.segments:MOST_ENTRIES=24", "knuckle.sysid.report.segments:MOST_SAMPLES=300",
        ),
        "one that only takes energy at `joint/force`": (
            "tests/neural/test_passive.py::test_no_power_is_given_at_half_a_million_states_and_weights",
        ),
        "with their 95 % intervals": (TRUTH,),
        "and residuals on training data": (
            SYSID + "test_report.py::test_quality_is_in_units_of_each_kind_of_joint_beside_the_noise_of_the_log",
        ),
        "Motion may agree with wrong inertias; torques then do not": (
            SYSID + "test_report.py::test_wrong_inertia_with_the_right_motion_is_warned_of",
        ),
        "the next experiment, residuals, identifiability": (LISTS,),
        "Rounds that are resumed end with the same bits": (
            SEARCH + "test_stopped_in_a_round_it_keeps_the_best_and_goes_on_as_if_it_had_not_been",
        ),
        "how late that is, up to 0.1 s; of both only the sum shows": (
            "knuckle.sysid.task:LONGEST_DELAY=0.1", SYSID + "test_fit.py::test_offsets_and_delays_are_found",
        ),
        "in units of half the sum of squared residuals over the noise": (LISTS,),
        "(weights of some thousandths, not exactly zero)": (
            SYSID + "test_fit.py::test_the_lasso_takes_away_an_input_that_is_not_needed",
        ),
        "begins anew from first weights of the same spread, up to `draws=4` times": (
            SYSID + "test_fit.py::"
            "test_first_weights_are_drawn_again_until_a_fit_holds_and_the_most_probable_end_stays",
            SYSID + "test_fit.py::test_weights_drawn_again_have_the_spread_of_the_first_and_leave_zeros",
        ),
        "make the held-out error at least 5 % smaller": (
            "knuckle.sysid.fit:HELPS=0.95",
            CLI + "limits.py::test_a_network_that_brings_nothing_is_left_out_unless_it_is_asked_for",
        ),
        "95 % intervals hold the truth in 95.5 % of 200 logs": (
            TRUTH + "#double pendulum, uneven stamps: coverage=0.955",
            SYSID + "test_uneven.py::test_a_truth_is_found_from_uneven_stamps_with_missing_rows",
        ),
        "Residuals are weighed by the noise of each channel": (
            SYSID + "test_how_sure.py::test_ties_become_firm_and_the_noise_is_found_when_the_model_is_right",
        ),
        "Up to 300 free numbers the solver is Levenberg-Marquardt": ("knuckle.sysid.many:MANY=300",),
        "errors beyond ten times the spread of the data": (
            "knuckle.sysid.held_out:DIVERGED=10",
            SYSID + "test_torque_fit.py::test_a_description_that_diverges_begins_with_measured_friction",
        ),
        "constants that cost 5 % of the sharpness": (TUNED,),
        "the masses of the pendulum above come out within 1 %": (
            SYSID + "test_fit.py::test_one_in_twenty_gross_outliers_costs_next_to_nothing",
            SYSID + "test_fit.py::test_squares_are_led_astray_by_gross_outliers",
        ),
    },
    "docs/how_sure.md": {
        "An interval of 95 % holds the truth in 95 of 100 logs": (
            TRUTH + "#double pendulum: coverage=0.95", TRUTH + "#cartpole: coverage=0.96",
            TRUTH + "#arm: coverage=0.95", TRUTH + "#quadruped: coverage=0.95",
        ),
        "with steps of at most a quarter of the time constant": (
            "knuckle.sysid.resolution:RESOLVED=0.25",
            SYSID + "test_resolution.py::test_the_step_does_not_go_into_the_damping_beside_a_stiff_servo",
        ),
        "an autoregression of first order": (
            SYSID + "test_colour.py::test_added_covariance_is_that_of_least_squares_under_such_noise",
        ),
        "they hold the truth in 93 of 100 cases": (TRUTH + "#double pendulum, coloured noise: coverage=0.93",),
        "neighbouring residuals correlate": (
            SYSID + "test_drive.py::test_noise_is_not_called_a_lack_and_a_slow_wave_is",
        ),
        "in 20 dimensions comes out within 5 % with 80 samples": (
            SYSID + "test_how_sure.py::test_samples_of_a_normal_density_have_its_mean_and_covariance",
        ),
    },
    "docs/index.md": {"to a simulator that agrees with it": (LISTS,)},
    "docs/notation.md": {},
    "docs/optimisation.md": {
        "a function from the free parameters to a residual vector": (LISTS,),
        "| `LevenbergMarquardt(loss=": (LISTS,),
        "| `LBFGSB(...)` | many parameters, or no residual vector": (LISTS,),
        "at most so many `seconds`": (
            OPTIM + "test_local.py::test_time_iterations_and_ctrl_c_end_a_search_with_the_best_so_far",
        ),
        "its value, gradient, residuals and Jacobian": (LISTS,),
        "gives it residuals alone, too": (OPTIM + "test_chain.py::test_looks_spare_jacobians",),
        "a resumed search ends with the same bits as one that was never stopped": (
            OPTIM + "test_global.py::test_a_search_that_was_stopped_goes_on_as_if_it_had_not_been",
        ),
        "With large products (beyond some 10^5 terms) the bits of `workers=0` may differ": (CAUTION,),
        "beyond some hundreds use `LBFGSB`": (CAUTION,),
    },
    "docs/prediction.md": {
        "A fit of roll-outs takes efforts as exact": (CAUTION,),
        "takes them from its residuals": (
            SYSID + "test_prediction.py::test_a_regression_predicts_known_quantities_as_its_intervals_have_them",
        ),
    },
    "docs/real_data.md": {
        "0.17 rad against 1.15 rad of the published fit": (
            PENDULUM + "#| mean of runs | | 1.148 | 0.278 | 0.171 |",
            PENDULUM + "#ours, from three runs, less the published fit: -0.976 (-1.117 to -0.838)",
            "tests/test_experiments.py::test_a_real_pendulum_is_predicted_better_than_by_its_published_fit",
        ),
        "Friction is the weak part": (
            CAUTION, PENDULUM + "#| Coulomb friction [N m] | 0.289 | 0.000 | 0.120 |",
        ),
        "an iteration of Levenberg-Marquardt takes 0.39 ms": (
            SPEED + "#knuckle:seconds=0.00039", SPEED + "#mujoco.sysid:seconds=0.024",
            SPEED + "#mujoco.sysid without compilation:seconds=0.021",
            "tests/test_experiments.py::test_an_identification_ends_where_that_of_mujoco_does",
        ),
        "is ahead at every horizon, for certain at 1 s": (
            VIDEO + "#| analytic | +0.09 (-0.02 to +0.19) | +0.35 (-0.01 to +0.73) | +1.49 (+0.35 to +2.66) "
            "| +1.42 (-1.52 to +4.36) |",
        ),
        "to 0.5 %, no sines": (
            "tests/test_experiments.py::test_gravity_in_the_video_of_a_double_pendulum_points_along_x",
        ),
        "filmed from nearer by 2 %": (
            "tests/sysid/test_datasets.py::test_markers_of_the_double_pendulum_keep_their_distance",
        ),
    },
    "docs/recordings.md": {
        "by default 256 MiB or 200 times the size of the file, whichever is more, and at most 2 GiB": (
            "knuckle.sysid.raw:SMALL=268435456", "knuckle.sysid.raw:EXPANSION=200",
            "knuckle.sysid.raw:LIMIT=2147483648", SYSID + "test_recording_fuzz.py::"
            "test_bombs_are_refused_before_they_are_unpacked",
        ),
    },
    "docs/regression.md": {
        "by at least 3 % and by more than one standard error": (
            "knuckle.sysid.regression.selection:LEAST_GAIN=0.03",
            REGRESS + "test_regress.py::test_slow_slides_get_a_friction_of_their_own_width",
        ),
        "## Networks on residual torques": (LISTS,),
        "Residual torques of the joints, in units of their noise": (
            SYSID + "test_residual_networks.py::test_the_filter_of_the_training_is_that_of_the_regression",
        ),
        "Friction, damping and offsets are free beside the network": (
            SYSID + "test_residual_networks.py::test_a_network_that_explains_torques_is_kept",
        ),
        "A network is kept if the held-out torque error falls by at least 2 %": (
            "knuckle.sysid.torque_fit:LEAST_GAIN=0.02",
            SYSID + "test_residual_networks.py::test_a_network_that_explains_torques_is_kept",
            SYSID + "test_residual_networks.py::test_a_network_that_brings_nothing_is_left_out_and_said_to_be",
        ),
        "or that carry at most 5 % of the robot's mass": (
            "knuckle.sysid.regression.held:LIGHT=0.05",
            REGRESS + "test_held.py::test_what_is_heavy_or_commanded_is_not_taken_as_stationary",
            REGRESS + "test_held.py::test_an_arm_is_fitted_though_its_fingers_are_not_logged_or_coupled",
        ),
        "An effort of exactly 0 throughout is a measurement if the joint swings freely": (
            SYSID + "regression/test_underactuated.py::test_an_effort_of_zero_that_holds_a_weight_was_not_measured",
            SYSID + "regression/test_underactuated.py::test_masses_do_not_vanish_where_a_joint_is_not_driven",
        ),
        "Its residuals therefore count as those of links as heavy as the description's": (
            SYSID + "regression/test_underactuated.py::test_masses_do_not_vanish_where_a_joint_is_not_driven",
        ),
        "with 95 % intervals, and notes": (LISTS,),
        '"diverges" means beyond ten times the spread of the data': ("knuckle.sysid.held_out:DIVERGED=10",),
        "the held-out torque error rises by at most 2 %": (
            "knuckle.sysid.torque_fit:TORQUE_MARGIN=0.02",
            SYSID + "test_torque_fit.py::test_a_refinement_that_does_harm_is_refused",
        ),
        "at least five times the band that holds 95 % of the velocity's power": (
            "knuckle.sysid.regression.filters:LEAST_BAND=5", "knuckle.sysid.regression.filters:ABOVE_FLOOR=7",
        ),
        "with sigma from its own residuals": (LISTS,),
        "Residuals beyond 3.5 robust standard deviations count less": (
            "knuckle.sysid.regression.problem:HUBER=3.5",
        ),
        "only beyond one standard error": (REGRESS + "test_regress.py::test_late_efforts_are_found_and_corrected",),
        "Blocks last three times the autocorrelation time of the residuals, with at least 15 blocks": (
            "knuckle.sysid.regression.jackknife:PER_CORRELATION=3",
            "knuckle.sysid.regression.jackknife:LEAST_BLOCKS=15",
            REGRESS + "test_solve.py::test_the_jackknife_of_a_mean_is_its_standard_error",
        ),
        "below 50 % a quantity \"rests on the prior\" and has no interval": (
            "knuckle.sysid.regression.quantities:LEAST_SHARE=0.5",
            REGRESS + "test_regress.py::test_the_text_names_joints_units_and_what_rests_on_the_prior",
        ),
    },
    "docs/taps.md": {
        "so the solve and its implicit gradient stay exact": (
            "tests/taps/test_tap_gradients.py::test_gradients_by_weights_at_every_tap_are_those_of_differences",
        ),
        "its force never gives more energy than it has taken": (
            "tests/neural/test_passive.py::test_no_power_is_given_at_half_a_million_states_and_weights",
            "tests/neural/test_passive.py::test_a_potential_changes_by_minus_its_forces_power",
        ),
        "add an error of first order to that balance": (
            "tests/taps/test_energy.py::test_energy_rises_by_no_more_than_a_bound_that_vanishes_with_the_step",
        ),
        "acts between links and keeps momentum": (
            "tests/neural/test_passive.py::test_pair_forces_keep_momentum_and_the_laws_energy",
            "tests/neural/test_passive.py::test_momentum_of_free_bodies_stays_in_a_rollout",
        ),
        "their damping is integrated implicitly, stable however strong": (
            "tests/taps/test_energy.py::test_damping_of_a_network_is_stable_however_strong_with_implicit",
        ),
    },
    "docs/discover.md": {
        "has every number with its unit and 95 % interval": (
            DISCOVER + "test_discover.py::test_viscous_damping_is_named_with_its_coefficient",
        ),
        "at 1 % over all candidates together": (
            "knuckle.sysid.discovery.select:LEVEL=0.01",
            DISCOVER + "test_select.py::test_nothing_is_chosen_from_noise",
        ),
        "Intervals allow for residuals that correlate within a segment": (LISTS,),
        "sets inputs that are not needed to exactly zero": (
            DISCOVER + "test_discover.py::test_the_network_reads_the_speed_and_nothing_else",
            DISCOVER + "test_network.py::test_block_descent_meets_the_optimality_conditions",
        ),
    },
    "docs/what_changed.md": {
        "small drifts, drive gains and torque residuals": (LISTS,),
        "A change of friction or offset below 15 % of the joint's friction is listed as a drift": (
            "knuckle.sysid.changes.quantities:DRIFT=0.15",
        ),
        "so that a drift is not taken for a payload": (CHANGES + "test_friction_of_one_joint",),
        "It must do so beyond chance (1 % over all candidates": (
            "knuckle.sysid.changes.search:LEVEL=0.01", "knuckle.sysid.changes.search:LEAST_GAIN=0.02",
            CHANGES + "test_nothing_changed_and_a_payload_that_would_have_been_seen",
        ),
        "0.5 % suffice": ("knuckle.sysid.changes.search:LEAST_ZERO_GAIN=0.005", CHANGES + "test_a_moved_zero"),
    },
}  # fmt: skip
