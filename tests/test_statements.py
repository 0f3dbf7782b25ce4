"""What pages say about accuracy, order, conservation and limits has a test, a kept result or a constant of the code.

Each statement stands here with its evidence. A sentence with one of the words below that is not listed fails, and so
does a statement that a page no longer makes.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.statements_of_fits import CAUTION, FITS, LISTS

ROOT = Path(__file__).parents[1]
WORDS = re.compile(
    r"symplectic|(first|second|fourth) order|\border \||conserv|\benergy|accura|exact|at most|no more than|\bup to\b|"
    r"\bbeyond\b|drift|\b(un)?stable\b|units in the last place|same bits|rounded|\bagree|residual|"
    r"\d ?%|holds? the truth",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"(?<=[.:;])\s+(?=[A-Z`*(])")
INTEGRATE, CONTACT, NATIVE = "tests/test_integrate.py::", "tests/contact/", "tests/native/"
HOSTILE = "tests/hostile/test_hostile_files.py::test_hostile_robots_are_refused"
POINT = CONTACT + "test_interior_point.py::"
GRADIENTS = CONTACT + "test_gradient_check.py::test_derivatives_are_right_away_from_changes_of_mode_and_never_nan"

STATEMENTS: dict[str, dict[str, tuple[str, ...]]] = {
    "README.md": {
        "gives exact derivatives with respect to everything": (
            "tests/test_simulate_gradients.py::", GRADIENTS, "tests/taps/test_tap_gradients.py::",
        ),
        "networks that cannot create energy": ("tests/neural/test_passive.py::",),
        "mass matrix (CRBA), energy, momentum": (LISTS,),
        "exact gradients, through bounces too": (
            CONTACT + "test_impulse.py::test_a_bounce_has_the_value_and_the_gradient_of_the_motion",
        ),
        "bound to laws of energy": ("tests/neural/test_passive.py::",),
    },
    "docs/usage.md": {
        "at most 16 MB and 100,000 elements": (
            HOSTILE, "knuckle.model.xml:MAX_ELEMENTS=100000", "knuckle.model.xml:MAX_XML_BYTES=16777216",
        ),
        "URDF at most 5,000 links, MJCF at most 10,000 elements": (
            HOSTILE, "knuckle.model.urdf_check:MAX_LINKS=5000", "knuckle.model.mjcf_files:MAX_EXPANDED=10000",
        ),
        "so nothing is rounded before you turn on float64": (
            "tests/model/test_load.py::test_leaves_are_numpy_float64",
        ),
        "| integrator | order | for |": (INTEGRATE + "test_observed_order_with_ball_and_free_joints",),
        "comparison only: it gains energy": (INTEGRATE + "test_explicit_euler_gains_energy_as_its_formula_says",),
        "The default is symplectic only if the mass matrix is constant": (
            INTEGRATE + "test_semi_implicit_euler_is_symplectic_only_with_a_constant_mass_matrix",
        ),
        "a free box that tumbles at 5 rad/s gains 11 % in 5 s with steps of 10 ms, and 1 % with 1 ms": (
            INTEGRATE + "test_a_tumbling_box_gains_energy_at_first_order",
        ),
        "Where energy matters, use short steps or `RK4()`": (
            INTEGRATE + "test_a_tumbling_box_gains_energy_at_first_order",
        ),
        "on the true friction cone, to a residual in m/s": (
            CONTACT + "test_search.py::test_every_problem_is_solved_to_the_tolerance",
            CONTACT + "test_closed_forms.py::test_friction_is_equal_in_every_direction",
        ),
        "near which a gradient is one-sided": (
            CONTACT + "test_constraints.py::test_check_raises_on_unsolved_steps_and_warns_at_kinks",
        ),
    },
    "docs/contact.md": {
        "Which shapes touch, where and with which friction follows the file by MuJoCo's rules": (
            CONTACT + "test_surfaces.py::test_pairs_friction_margins_and_distances_are_those_of_mujocos_contacts",
            CONTACT + "test_surfaces.py::test_pairs_friction_and_margins_of_robot_files_are_mujocos",
            CONTACT + "test_pairs.py::test_self_collision_is_as_the_file_says_unless_it_is_chosen",
        ),
        "Margins of two shapes add up: bodies touch, and rest, that far apart": (
            CONTACT + "test_surfaces.py::test_a_ball_rests_at_the_sum_of_the_margins",
        ),
        "at most 16 rows, or `InteriorPoint`": (
            "knuckle.contact.couple:FEW_ROWS=16",
            CONTACT + "test_coupling.py::test_the_space_is_chosen_by_what_couples",
        ),
        "All stop at the same residual and have the same derivative": (
            CONTACT + "test_gauss_seidel.py::test_random_contacts_are_solved_as_by_newton",
            CONTACT + "test_gauss_seidel.py::test_the_gradient_is_that_of_newton",
        ),
        "Contacts within reach are solved, up to `most_contacts`": (
            CONTACT + "test_nearest.py::test_contacts_within_reach_come_first_and_no_one_twice",
            CONTACT
            + "test_nearest.py::test_a_contact_that_comes_and_goes_keeps_its_impulse_and_overflow_is_said",
        ),
        "Over a plane up to four corners touch": (
            CONTACT + "test_hulls.py::test_corners_on_a_plane_are_those_that_spread_keeps",
        ),
        "R below 1e-12 of a row's inverse mass": ("knuckle.contact.system:LEAST_SOFTNESS=1e-12",),
        "`run.contact` holds everything about the contacts": (LISTS,),
        "to a residual of `tolerance` [m/s]": (
            CONTACT + "test_search.py::test_every_problem_is_solved_to_the_tolerance",
        ),
        "impulses of an unsolved one are shortened until they add no energy": (
            CONTACT + "test_scenes.py::test_impulses_of_a_failed_search_add_no_energy",
        ),
        "at no more than `recovery_speed` (0.1 m/s)": (
            CONTACT + "test_scenes.py::test_a_deep_overlap_is_undone_at_the_recovery_speed",
        ),
        "This bounds the energy that recovery adds": (
            CONTACT + "test_scenes.py::test_a_deep_overlap_is_undone_at_the_recovery_speed",
            CONTACT + "test_scenes.py::test_a_start_with_overlap_does_not_eject_a_stack",
            CONTACT + "test_scenes.py::test_a_quadruped_that_starts_with_its_feet_in_the_floor_stays",
        ),
        "With zero or passive restitution contact adds no other energy": (
            CONTACT + "test_scenes.py::test_random_scenes_have_no_fault",
            CONTACT + "test_scenes.py::test_energy_is_that_of_recovery_and_of_the_solvers_tolerance",
            CONTACT + "test_scenes.py::test_a_gain_by_impulses_beyond_the_solvers_tolerance_is_seen",
            CONTACT + "test_restitution.py::test_random_blows_on_many_corners_gain_no_energy",
        ),
        "1.344 J become 2.099 J": (CONTACT + "test_closed_forms.py::test_newtons_law_raises_the_energy_of_kanes_rod",),
        "stable at any stiffness, right at rest": (
            CONTACT + "test_compliant.py::test_a_stiff_ground_is_stable_and_carries_exactly",
            CONTACT + "test_compliant.py::test_a_body_at_its_rest_depth_stays",
        ),
        "Without dissipation a body keeps 91 % of its speed": (
            CONTACT + "test_compliant.py::test_the_implicit_step_loses_speed_in_a_short_bounce",
        ),
        "with 95 % bootstrap intervals": ("experiments/results/cube_tosses.json",),
        "lengths are recorded 2.2 % short": ("experiments/results/cube_tosses.json",),
        "Substeps that are too long (unstable, or energy is gained)": (
            CONTACT + "test_scenes.py::test_substeps_that_are_too_long_are_refused",
            CONTACT + "test_compliant.py::test_substeps_that_are_too_long_are_neither_solved_nor_of_a_small_residual",
        ),
        "agrees with it without friction, in planar models, and where slip is along a corner": (
            POINT + "test_a_box_that_slides_along_a_direction_of_the_pyramid_moves_as_on_the_cone",
            POINT + "test_with_limits_ties_and_dry_friction_in_a_plane_it_moves_as_the_cone_does",
        ),
        "so that a line search agrees with its slope": (
            CONTACT + "test_smoothing.py::test_the_derivative_of_the_relaxed_step_is_its_own",
        ),
        "the exact gradient of a long roll-out is right and large": ("experiments/results/contact_convergence.md",),
        "the share `correction` (0.2) of the error, at no more than `correction_speed`": (
            CONTACT
            + "test_constraints.py::test_a_violated_limit_returns_at_the_speed_that_is_asked_and_says_what_is_left",
        ),
        "Positions are of first order": ("experiments/results/contact_convergence.json",),
        "They agree with differences of 1e-5 and not with those of 1e-3": (
            "experiments/results/contact_convergence.json",
        ),
        "exactly aligned and coincident bodies": (CONTACT + "test_scenes.py::test_random_scenes_have_no_fault",),
        "Energy may grow by no more than laws explain": (
            CONTACT + "test_scenes.py::test_the_judge_sees_what_is_wrong",
            CONTACT + "test_scenes.py::test_the_bound_of_frictions_work_holds_for_any_residual",
        ),
        "residuals count up to the solver's tolerance": (
            CONTACT + "test_scenes.py::test_a_gain_of_the_same_size_that_no_impulse_explains_is_seen",
        ),
        "add up to e (|r| + m |u|)": (
            CONTACT + "test_scenes.py::test_energy_is_that_of_recovery_and_of_the_solvers_tolerance",
        ),
        "forward and reverse mode agree, and nothing anywhere is NaN": (GRADIENTS,),
        'unless `beyond="hold"` lets it stand still there': (
            "tests/prescribed/test_bodies.py::test_a_held_path_may_end_before_the_rollout",
        ),
    },
    "docs/control.md": {
        "Use it for long or unstable horizons": (
            "tests/control/test_ilqr.py::test_segments_bridge_a_horizon_over_which_roll_outs_explode",
        ),
    },
    "docs/design.md": {
        "one search by L-BFGS finds it from 25 of 60 random starts": ("experiments/results/arm_design.json",),
        "Beyond the paper, joint angles are unknown too": ("experiments/results/arm_design.json",),
    },
    "docs/envs.md": {},
    "docs/layers.md": {},
    "docs/render.md": {},
    "docs/native.md": {
        "stays scalars if that takes at most half an operation per element": (
            NATIVE + "test_structure.py::test_rows_that_are_zero_cost_nothing",
            NATIVE + "test_structure.py::test_dense_arrays_stay_loops",
        ),
        "elements that are exactly zero vanish": (NATIVE + "test_versions.py::test_zeros_that_change_are_seen",),
        "at most 2.5 times the operations": (
            NATIVE + "test_versions.py::test_a_native_rollout_of_a_model_is_nearly_as_short_as_of_one_closed_over",
        ),
        "up to 4 have code of their own; beyond, they share code without zeros": (
            NATIVE + "test_versions.py::test_patterns_beyond_a_few_share_one_version",
            "knuckle.native.sparsity:MOST_PATTERNS=4",
        ),
        "`a * b + c` is rounded once": (NATIVE + "test_lower.py::test_a_product_that_is_added_is_rounded_once",),
        "within 1.5 units in the last place instead of 0.5": (
            NATIVE
            + "test_lower.py::test_divisions_by_one_value_are_within_one_and_a_half_units_in_the_last_place",
        ),
        "within 2 units in the last place": (NATIVE + "test_vecmath.py::test_any_double_is_within_two_ulp",),
        "The same code gives the same bits for the same inputs": (
            NATIVE + "test_lower.py::test_the_same_program_gives_the_same_machine_code",
            NATIVE + "test_lower.py::test_each_lane_has_the_bits_of_the_single_program",
        ),
        "dead code, reciprocals, sine with cosine": (LISTS,),
        "(`residuals.py`)": (LISTS,),
        "loop variables up to 256 elements are scalars (64 if they are indexed at run time)": (
            "knuckle.native.lower_control:CARRY_LIMIT=256", "knuckle.native.lower_control:INDEXED_LIMIT=64",
        ),
        "Cholesky factors up to 24 rows, LU up to 8 and triangular solves up to 4000 products": (
            "knuckle.native.lower_linalg:UNROLLED_CHOLESKY=24", "knuckle.native.lower_linalg:UNROLLED_LU=8",
            "knuckle.native.lower_linalg:UNROLLED_SOLVE=4000",
        ),
        "Up to 32 rows factors work in memory": ("knuckle.native.lower_linalg:STEPS_LIMIT=32",),
        "Beyond, block algorithms work on strips of eight columns": (
            "knuckle.native.lower_blocked:GROUP=8",
            NATIVE + "test_linalg.py::test_code_is_as_short_for_many_rows_as_for_few",
        ),
        "Regions beyond 60,000 operations are cut where few values are live (5000 in C; a load": (
            "knuckle.native.llvm_split:REGION_LIMIT=60000", "knuckle.native.c:REGION_LIMIT=5000",
            "knuckle.native.llvm_split:MEMORY_WEIGHT=3",
        ),
        "to the power of at most 1.3": ("benchmarks/results/compile_growth.json",),
        "The folder holds at most 512 MB; the least recently used programs go first": (
            "knuckle.native.cache:LIMIT_BYTES=536870912",
            NATIVE + "test_cache.py::test_the_least_recently_used_go_first",
        ),
        "by exchanges (up to 48 elements) or insertion": (
            "knuckle.native.lower_sort:EXCHANGE_LIMIT=48",
            NATIVE + "test_wrong_results.py::test_sorting_with_nan_ties_and_both_zeros",
        ),
        "It is always stable": (
            NATIVE + "test_wrong_results.py::test_sorting_that_need_not_be_stable_is_stable",
        ),
    },
}  # fmt: skip
STATEMENTS |= FITS
WRITTEN = {"docs/robots.md"}  # by a script: its figures are not sentences of ours


def plain(text: str) -> str:
    return " ".join(text.split())


def sentences(page: str) -> list[str]:
    """Of a page without its blocks of code; a point of a list and a row of a table are sentences of their own."""
    text = re.sub(r"^```.*?^```$", "\n\n", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"\n\s*\n|\n(?=[-|#] ?)", text)
    return [sentence for part in parts for sentence in SENTENCE.split(plain(part))]


@pytest.mark.parametrize("page", STATEMENTS)
def test_every_statement_is_listed(page: str):
    stated = [sentence for sentence in sentences(page) if WORDS.search(sentence)]
    missing = [s for s in stated if not any(part in s for part in STATEMENTS[page])]
    assert missing == [], "give each its evidence in tests/test_statements.py, or take it out"


@pytest.mark.parametrize("page", STATEMENTS)
def test_what_is_listed_is_on_the_page(page: str):
    text = plain((ROOT / page).read_text())
    assert [part for part in STATEMENTS[page] if part not in text] == []


def kept(path: str, place: str) -> Any:
    """A figure of a kept result: that of a claim with these words, or where its keys lead."""
    data = json.loads((ROOT / path).read_text())
    for claim in data.get("claims", []):
        if claim["what"] == place:
            return claim["measured"]
    for key in place.split(":"):
        data = data[key]
    return data


def is_there(evidence: str) -> bool:
    path, _, figure = evidence.partition("#")
    if figure and path.endswith(".md"):
        return figure in (ROOT / path).read_text()
    if figure:
        place, value = figure.rsplit("=", 1)
        digits = len(value.split(".")[1])
        return round(kept(path, place), digits) == float(value)
    if "=" in evidence:
        place, value = evidence.split("=")
        module, name = place.split(":")
        return getattr(importlib.import_module(module), name) == float(value)
    path, _, test = evidence.partition("::")
    return (ROOT / path).exists() and (not test or f"\ndef {test}(" in (ROOT / path).read_text())


def test_every_page_is_gone_through():
    pages = {"README.md"} | {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages - WRITTEN == set(STATEMENTS)


def test_evidence_is_there():
    given = {e for page in STATEMENTS.values() for evidence in page.values() for e in evidence} - {LISTS, CAUTION}
    assert [evidence for evidence in sorted(given) if not is_there(evidence)] == []


def test_a_statement_without_evidence_is_seen(monkeypatch):
    """The page of an earlier version called the default integrator symplectic."""
    monkeypatch.setitem(globals(), "sentences", lambda page: ["The default is symplectic and fast."])
    with pytest.raises(AssertionError, match="symplectic and fast"):
        test_every_statement_is_listed("docs/usage.md")
    assert not is_there("tests/test_integrate.py::test_that_is_not_there")
    assert not is_there("knuckle.native.sparsity:MOST_PATTERNS=5")
    assert not is_there("experiments/results/known_truth.json#arm: coverage=0.99")
