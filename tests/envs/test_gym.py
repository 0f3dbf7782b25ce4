"""Gymnasium's checks, vectors of environments against single ones, ways to begin anew, and pictures."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium", reason="Gymnasium is an extra: pip install 'knuckle[envs]'")

from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode  # noqa: E402

from knuckle import envs  # noqa: E402


@pytest.mark.parametrize("name", envs.names())
def test_gymnasium_finds_nothing_wrong(name: str):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        check_env(envs.GymEnvironment(name), skip_render_check=True)
    assert not [str(w.message) for w in told if "infin" not in str(w.message)]


@pytest.fixture(scope="module")
def hopper() -> envs.VectorEnvironment:
    return envs.VectorEnvironment("hopper", 3, threads=1)


def test_a_vector_moves_as_single_environments_do(hopper):
    """Bit by bit, from the same seeds, until the first episode ends."""
    single = [envs.GymEnvironment(hopper.environment) for _ in range(2)]
    seen, _ = hopper.reset(seed=[5, 6, 7])
    for k, one in enumerate(single):
        np.testing.assert_array_equal(one.reset(seed=5 + k)[0], seen[k])
    rng, over = np.random.default_rng(0), np.zeros(3, bool)
    for _ in range(30):
        actions = rng.uniform(-0.3, 0.3, (3, 3)).astype(np.float32)
        seen, reward, terminated, truncated, _ = hopper.step(actions)
        for k, one in enumerate(single):
            if not over[k]:
                found = one.step(actions[k])
                np.testing.assert_array_equal(found[0], seen[k])
                assert found[1:4] == (reward[k], terminated[k], truncated[k])
        over |= terminated | truncated


@pytest.fixture(scope="module")
def short() -> envs.Environment:
    return envs.make("cartpole", longest=3)


def test_episodes_begin_anew_with_the_next_action(short):
    made = envs.VectorEnvironment(short, 4)
    made.reset(seed=0)
    ends = [made.step(np.zeros((4, 1)))[3].all() for _ in range(9)]
    assert ends == [False, False, True, False, False, False, True, False, False]  # the fourth action begins anew
    assert made.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    *_, reward, _, _, _ = made.step(np.zeros((4, 1)))
    assert (reward == 1).all()


def test_episodes_begin_anew_at_once_with_what_was_seen_last(short):
    made = envs.VectorEnvironment(short, 4, autoreset_mode=AutoresetMode.SAME_STEP)
    first, _ = made.reset(seed=0)
    for _ in range(2):
        before, *_, infos = made.step(np.ones((4, 1)))
        assert not infos
    seen, _, _, truncated, infos = made.step(np.ones((4, 1)))
    assert truncated.all() and infos["_final_obs"].all()
    last = np.stack(infos["final_obs"])
    assert np.abs(seen[:, 3:]).max() <= 0.05 < np.abs(before[:, 3]).min() < np.abs(last[:, 3]).min()
    assert not np.array_equal(seen, first)  # another start than before


def test_or_when_they_are_told_to(short):
    made = envs.VectorEnvironment(short, 4, autoreset_mode=AutoresetMode.DISABLED)
    made.reset(seed=0)
    for _ in range(3):
        seen, _, _, truncated, _ = made.step(np.zeros((4, 1)))
    with pytest.raises(gymnasium.error.ResetNeeded, match=r"environments \[0, 1, 2, 3\] have ended"):
        made.step(np.zeros((4, 1)))
    mask = np.array([True, False, True, False])
    again, _ = made.reset(options={"reset_mask": mask})
    np.testing.assert_array_equal(again[~mask], seen[~mask])
    assert not np.any(np.all(again[mask] == seen[mask], axis=1)) and truncated.all()
    for bad in ([True], np.ones(4), np.zeros(4, bool)):
        with pytest.raises(ValueError, match="reset_mask"):
            made.reset(options={"reset_mask": bad})


def test_seeds_and_shapes(short):
    made = envs.VectorEnvironment(short, 2)
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        made.step(np.zeros((2, 1)))
    np.testing.assert_array_equal(made.reset(seed=4)[0], made.reset(seed=4)[0])
    assert not np.array_equal(made.reset()[0], made.reset()[0])
    with pytest.raises(ValueError, match=r"shape \(2, 1\), got \(1,\)"):
        made.step(np.zeros(1))
    with pytest.raises(ValueError, match="expected one number or 2, got 3"):
        made.reset(seed=[1, 2, 3])


def test_they_are_made_by_their_ids():
    ids = envs.register()
    assert "knuckle/pendulum-v0" in ids and envs.register() == ids
    one = gymnasium.make("knuckle/pendulum-v0", render_mode="rgb_array", longest=5)
    one.reset(seed=0)
    assert [one.step(np.zeros(1, np.float32))[3] for _ in range(5)] == [False] * 4 + [True]
    picture = one.render()
    assert picture.shape == (480, 480, 3) and picture.dtype == np.uint8 and len(np.unique(picture)) > 10
    many = gymnasium.make_vec("knuckle/pendulum-v0", num_envs=2, vectorization_mode="vector_entry_point")
    assert many.reset(seed=0)[0].shape == (2, 3)


def test_a_picture_follows_the_robot_and_keeps_its_scale():
    """The hopper far away looks as it did, but for the line of the ground, which is level."""
    one = envs.GymEnvironment("hopper", render_mode="rgb_array")
    one.reset(seed=0)
    here = one.render()
    assert one.episode is not None
    q = np.array(one.episode.state.q)
    assert np.abs(one.stage.picture(q + np.array([7.0, 0, 0, 0, 0, 0])).astype(int) - here).mean() < 0.5
    assert np.abs(one.stage.picture(q + np.array([0, 0, 0.5, 0, 0, 0])).astype(int) - here).mean() > 1
