"""Sets of effects are chosen by evidence: planted ones are found, noise is not."""

from __future__ import annotations

import numpy as np
import pytest

from knuckle.sysid.discovery.library import Candidate, rounded
from knuckle.sysid.discovery.segments import Linear, normal
from knuckle.sysid.discovery.select import Selector, fold_numbers, gather, stability

SEGMENTS, ROWS, FREE, OWN = 48, 60, 12, 4


def candidates(costs=(1,) * FREE) -> list[Candidate]:
    return [Candidate(f"effect {k}", f"effect {k}", "", "joint/force", (), (k,), cost) for k, cost in enumerate(costs)]


def evidence(theta, seed=0, twin=False, scale=1.0):
    """A linear problem with nuisance initial states: r = J (z - theta) + S s + noise, of unit noise times `scale`."""
    rng = np.random.default_rng(seed)
    by_free = rng.normal(size=(SEGMENTS, ROWS, FREE)) * np.linspace(0.3, 3, FREE)
    if twin:
        by_free[..., 1] = 2 * by_free[..., 0]
    by_start = rng.normal(size=(SEGMENTS, ROWS, OWN))
    start = rng.normal(size=(SEGMENTS, OWN))
    residual = -by_free @ np.asarray(theta) + (by_start @ start[..., None])[..., 0]
    residual += scale * rng.normal(size=residual.shape)
    linear = Linear(residual, by_free, by_start)
    folds = fold_numbers(np.repeat(np.arange(8), SEGMENTS // 8))
    found = normal(linear, np.zeros((SEGMENTS, OWN)))
    return linear, gather(found, np.zeros(FREE), folds, SEGMENTS * ROWS, np.zeros(FREE), np.zeros(0, int))


def test_initial_states_are_eliminated_exactly():
    """The Schur complement gives the same solution as all unknowns together."""
    count, linear = 6, evidence(np.arange(FREE) / 10)[0]
    linear = Linear(*(part[:count] for part in linear))
    found = normal(linear, np.zeros((count, OWN)))
    whole = np.zeros((count * ROWS + count * OWN, FREE + count * OWN))
    for k in range(count):
        rows, own = slice(k * ROWS, (k + 1) * ROWS), slice(FREE + k * OWN, FREE + (k + 1) * OWN)
        whole[rows, :FREE], whole[rows, own] = linear.by_free[k], linear.by_start[k]
    whole[count * ROWS :, FREE:] = np.eye(count * OWN)
    right = np.concatenate([linear.residual.reshape(-1), np.zeros(count * OWN)])
    best = -np.linalg.lstsq(whole, right, rcond=None)[0]
    z = -np.linalg.solve(found.matrix.sum(0), found.slope.sum(0))
    np.testing.assert_allclose(z, best[:FREE], rtol=1e-9, atol=1e-12)  # rounding of a well-conditioned problem
    starts = found.start + found.start_by_free @ z
    np.testing.assert_allclose(starts.reshape(-1), best[FREE:], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("scale", [1.0, 7.0])
def test_planted_effects_are_found_whatever_the_noise(scale):
    """Effects of about ten standard deviations each; the assumed noise may be wrong by any factor."""
    theta = np.zeros(FREE)
    theta[3], theta[7] = 0.25 * scale, -0.2 * scale
    _, found = evidence(theta, scale=scale)
    assert found.noise == pytest.approx(scale, rel=0.05)  # 2700 degrees of freedom: 1.4 % is one deviation
    selector = Selector(found, candidates())
    chosen = selector.search().chosen
    assert chosen.effects == (3, 7)
    np.testing.assert_allclose(selector.values(chosen)[[3, 7]], theta[[3, 7]], rtol=0.2)


def test_nothing_is_chosen_from_noise():
    """At a level of 1 % one alarm in 20 has a probability of 0.17, two of 0.016."""
    alarms = 0
    for seed in range(20):
        _, found = evidence(np.zeros(FREE), seed=seed)
        alarms += bool(Selector(found, candidates()).search().chosen.effects)
    assert alarms <= 1


def test_two_effects_with_the_same_column_are_a_tie_and_the_cheaper_one_wins():
    theta = np.zeros(FREE)
    theta[0] = 2.0
    _, found = evidence(theta, twin=True)
    selector = Selector(found, candidates((3, 1) + (1,) * (FREE - 2)))
    chosen = selector.search().chosen
    assert chosen.effects == (1,)
    assert 0 in Selector(found, candidates((1, 1) + (1,) * (FREE - 2))).ties(selector.score((1,)))[1]


def test_stability_counts_how_often_an_effect_is_chosen():
    theta = np.zeros(FREE)
    theta[5] = 0.5
    _, found = evidence(theta)
    often = stability(found, candidates(), 20, 0)
    assert often[5] == 1.0 and np.delete(often, 5).max() <= 0.2


def test_few_recordings_are_cut_into_blocks():
    np.testing.assert_array_equal(fold_numbers(np.array([3.0, 3, 5, 7, 9])), [0, 0, 1, 2, 3])
    single = fold_numbers(np.zeros(16))
    assert len(np.unique(single)) == 8 and (np.diff(single) >= 0).all()


def test_scales_are_rounded_to_one_two_or_five():
    assert [rounded(x) for x in (0.013, 0.3, 4.0, 77.0)] == pytest.approx([0.01, 0.2, 5.0, 100.0])
