"""Recordings, their parts, and their files."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from knuckle.sysid import Channel, Recording, RecordingError, load_saved, resample, save, segments, shift, split
from knuckle.sysid.readers import read_recordings
from tests.sysid.logs import pendulum, swing

MODEL = pendulum()


def recording(name: str = "run", seconds: float = 8.0) -> Recording:
    t, q, qd = swing(seconds)
    return Recording.of(MODEL, t, q=q, qd=qd, observed={"pixels": np.stack([q[:, 0], t], 1)}, name=name, source="here")


def test_arrays_cannot_be_written():
    run = recording()
    with pytest.raises(ValueError, match="read-only"):
        run.time[0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        run["q"].values[0, 0] = 1.0
    with pytest.raises(TypeError):
        run.channels["q"] = run["qd"]  # type: ignore[index]


def test_values_that_were_not_measured_are_interpolated_and_marked():
    t = np.array([0.0, 1.0, 3.0, 4.0])
    run = Recording.of(MODEL, t, q=[[0, 1], [np.nan, 1], [3, np.inf], [4, 1]])
    assert run["q"].valid.tolist() == [[True, True], [False, True], [True, False], [True, True]]
    np.testing.assert_allclose(run["q"].values, [[0, 1], [1, 1], [3, 1], [4, 1]], rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("time", "said"),
    [
        ([0.0, 1.0, 1.0], r"sample 2 has 1.0 after 1.0"),
        ([0.0, np.nan, 1.0], r"time of sample 1 is nan"),
        ([0.0], r"at least 2 times"),
    ],
)
def test_times_that_do_not_increase_are_refused(time, said):
    with pytest.raises(ValueError, match=said):
        Recording.of(MODEL, time, q=np.zeros((len(time), 2)))


def test_a_channel_of_another_size_is_refused():
    with pytest.raises(ValueError, match="q must have 2 entries in its last axis, got 3"):
        Recording.of(MODEL, [0.0, 1.0], q=np.zeros((2, 3)))
    with pytest.raises(ValueError, match=r"values must be \(2, 1\), got \(3, 1\)"):
        Recording([0.0, 1.0], {"x": Channel(np.zeros((3, 1)), np.ones((3, 1), bool), ("x",))})  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="no channel 'tau'; it has q, qd, pixels"):
        recording()["tau"]


@given(
    values=st.lists(
        st.tuples(st.floats(1e-6, 1e3), st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False))),
        min_size=2,
        max_size=20,
    )
)
@settings(max_examples=40, deadline=None)
def test_files_read_back_identical(values, tmp_path_factory):
    time = np.cumsum([step for step, _ in values])
    if np.any(np.diff(time) <= 0):
        return
    x = np.array([[np.nan if v is None else v, -0.0] for _, v in values])
    run = Recording.of(MODEL, time, q=x, observed={'odd, "name"\n#': x[:, :1]}, name="a, b", source="c")
    folder = tmp_path_factory.mktemp("saved")
    for name in ("run.npz", "run.csv"):
        assert load_saved(save(run, folder / name)).same_as(run)


@pytest.mark.parametrize("name", ["run.npz", "run.csv"])
def test_saved_recordings_are_read_without_checks_and_only_for_their_model(name: str, tmp_path: Path):
    t, q, qd = swing()
    run = Recording.of(MODEL, t, q=np.degrees(q), qd=qd, name="odd")  # a check would turn it into radians
    path = save(run, tmp_path / name)
    read = read_recordings(path, MODEL)
    assert len(read.report) == 0 and read[0].same_as(run)
    from knuckle import robots

    with pytest.raises(
        RecordingError, match="recorded of another model: it has shoulder, elbow, the model slider, hinge"
    ):
        read_recordings(path, robots.load("cartpole"))


def test_files_of_other_suffixes_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"saved as \.npz or \.csv, not '\.mat'"):
        save(recording(), tmp_path / "run.mat")


@given(count=st.integers(2, 12), share=st.floats(0.05, 0.95), seed=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_several_runs_are_split_into_whole_runs(count: int, share: float, seed: int):
    runs = [recording(f"run{i}", 1.0) for i in range(count)]
    train, test = split(runs, held_out=share, seed=seed)
    assert sorted(r.name for r in train + test) == sorted(r.name for r in runs)
    assert train and test and abs(len(test) - share * count) <= 1
    again = split(runs, held_out=share, seed=seed)
    assert [r.name for r in again[1]] == [r.name for r in test]


def test_one_run_is_split_into_blocks_of_time_that_cover_it_once():
    run = recording()
    train, test = split([run], held_out=0.25)
    times = np.sort(np.concatenate([r.time for r in train + test]))
    np.testing.assert_array_equal(times, run.time)
    assert sum(map(len, test)) == pytest.approx(0.25 * len(run), abs=8)
    for part in train + test:
        at = np.searchsorted(run.time, part.time)
        assert np.all(np.diff(at) == 1)
        np.testing.assert_array_equal(part.q, run.q[at])  # type: ignore[index]
    other = [{r.name for r in split([run], seed=s)[1]} for s in range(6)]
    assert any(names != other[0] for names in other)


@pytest.mark.parametrize("held_out", [0.0, 1.0, -1.0, np.nan])
def test_a_share_that_leaves_nothing_is_refused(held_out: float):
    with pytest.raises(ValueError, match="held_out must be between 0 and 1"):
        split([recording()], held_out=held_out)


def test_segments_join_end_to_end_and_do_not_cross_gaps():
    t, q, _ = swing()
    keep = np.ones(len(t), bool)
    keep[700:900] = False
    run = Recording.of(MODEL, t[keep], q=q[keep])
    assert run.gaps.tolist() == [699]
    parts = segments(run, 0.5)
    assert all(part.duration <= 0.5 + 1e-9 and np.all(np.diff(part.time) < 0.01) for part in parts)
    shared = sum(a.time[-1] == b.time[0] for a, b in itertools.pairwise(parts))
    assert shared == len(parts) - 2  # all neighbours but those beside the gap
    assert set(np.concatenate([part.time for part in parts])) == set(run.time)


def test_segments_can_overlap():
    parts = segments(recording(), 1.0, overlap=0.5)
    starts = np.array([part.time[0] for part in parts])
    np.testing.assert_allclose(np.diff(starts)[:-1], 0.5, atol=0.005)
    with pytest.raises(ValueError, match="overlap shorter"):
        segments(recording(), 1.0, overlap=1.0)


def test_resampling_a_line_is_exact_and_marks_gaps():
    t = np.concatenate([np.arange(0, 1, 0.01), np.arange(2, 3, 0.013)])
    run = Recording.of(MODEL, t, q=np.stack([3 * t, -t], 1))
    even = resample(run, rate=200.0)
    assert even.q is not None
    np.testing.assert_allclose(even.q, np.stack([3 * even.time, -even.time], 1), atol=1e-12)
    gap = (even.time > t[99] + 1e-9) & (even.time < 2 - 1e-9)
    np.testing.assert_array_equal(even["q"].valid[:, 0], ~gap)
    assert resample(run, time=run.time).same_as(run)


def test_controls_are_held_when_resampled():
    from knuckle import robots

    model = robots.load("cartpole")
    run = Recording.of(model, [0.0, 1.0, 2.0], control=[[1.0], [5.0], [2.0]])
    fine = resample(run, rate=4.0)
    assert fine.control is not None
    assert fine.control[:, 0].tolist() == [1, 1, 1, 1, 5, 5, 5, 5, 2]


def test_a_shifted_channel_stands_where_it_belongs():
    t, q, qd = swing()
    late = np.stack([np.interp(t - 0.02, t, qd[:, j]) for j in range(2)], 1)
    run = shift(Recording.of(MODEL, t, q=q, qd=late), "qd", -0.02)
    inside = run["qd"].valid[:, 0]
    assert 0 < np.sum(~inside) <= 6  # what left the recording at its end
    np.testing.assert_allclose(run["qd"].values[inside][6:], qd[inside][6:], atol=5e-3)  # twice interpolated
