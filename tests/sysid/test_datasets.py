"""The published sets: read where they are there, asked for where they are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import knuckle as kn
from knuckle.sysid import RecordingError, datasets, read_recordings


def needs(name: str):
    try:
        datasets.find(name)
        reason = ""
    except FileNotFoundError as error:
        reason = str(error)
    return pytest.mark.skipif(bool(reason), reason=reason or "there")


@needs("ibm_double_pendulum")
def test_markers_of_the_double_pendulum_keep_their_distance():
    runs = datasets.ibm_double_pendulum()
    assert len(runs) == 14
    first = [np.hypot(*(run["pixels"].values[:, 2:4] - run["pixels"].values[:, :2]).T).mean() for run in runs]
    nearer = np.array(first) / np.median(first) - 1
    assert np.all(np.abs(nearer[:2] - 0.022) < 2e-3) and np.all(np.abs(nearer[2:]) < 2e-3)  # two filmed from nearer
    for run in runs:
        x = run["pixels"].values
        arms = [np.hypot(*(x[:, i : i + 2] - x[:, i - 2 : i]).T) for i in (2, 4)]
        assert all(np.std(arm) < 0.02 * np.mean(arm) for arm in arms)  # rigid rods, seen to about a pixel
        assert np.all(np.std(x[:, :2], axis=0) < 3)  # the pivot stays where it is


@needs("dfki_simple_pendulum")
def test_the_driven_pendulum_is_read_by_name_without_alarm():
    runs = datasets.dfki_simple_pendulum()
    assert len(runs) == 10 and all(set(run.channels) == {"q", "qd", "tau"} for run in runs)
    link = kn.Link("rod", joints=kn.revolute("y", name="pendulum"), mass=0.5, com=(0, 0, -0.5), inertia=(0.01,) * 3)
    read = read_recordings(datasets.find("dfki_simple_pendulum") / "measured.npz", kn.build([link]))
    assert [f for f in read.report if f.action != "note"] == []
    for a, b in zip(sorted(read, key=lambda r: r.name), runs, strict=True):
        assert a.name == f"measured/{b.name}"
        np.testing.assert_array_equal(a["q"].values, b["q"].values)
        np.testing.assert_array_equal(a["tau"].values, b["tau"].values)


@needs("contactnets_cube")
def test_tosses_are_states_of_a_free_joint():
    tosses = datasets.contactnets_cube()
    assert len(tosses) == 400 and sum(map(len, tosses)) == 41390
    cube = kn.build([kn.Link("body", joints=kn.free(name="cube"), mass=0.37, inertia=(8.1e-4,) * 3)])
    from knuckle.sysid.entries import names_of

    for toss in tosses[::40]:
        assert toss["q"].names == names_of(cube, "q") and toss["qd"].names == names_of(cube, "qd")
        np.testing.assert_allclose(np.linalg.norm(toss["q"].values[:, 3:], axis=1), 1, atol=1e-5)  # float32
        assert toss.period == pytest.approx(1 / 148)


@needs("mcube_push")
def test_pushes_are_on_one_clock_and_frozen_forces_are_not_valid():
    pushes = datasets.mcube_push()
    kinds = [push.name.split()[1] for push in pushes]
    assert len(pushes) == 70 and sum(k == "train" for k in kinds) == 50
    for push in pushes:
        assert push["force"].valid.any() == ("rect1" not in push.name)
        moved = push["tip"].values[-1, :2] - push["tip"].values[0, :2]
        assert 0.02 < np.hypot(*moved) < 0.06  # index.csv: about 5 cm
    shapes = datasets.mcube_shapes()
    assert shapes["butter"]["mass"] > 0 and np.shape(shapes["rect1"]["outline"]) == (4, 2)


def test_a_set_that_is_absent_says_where_it_is_published(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("KNUCKLE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError) as error:
        datasets.dfki_simple_pendulum()
    assert "torque_limited_simple_pendulum" in str(error.value) and "set KNUCKLE_DATA" in str(error.value)
    assert str(tmp_path / "dfki_simple_pendulum") in str(error.value)


def test_a_file_that_was_changed_is_refused(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("KNUCKLE_DATA", str(tmp_path))
    (tmp_path / "contactnets_cube").mkdir()
    (tmp_path / "contactnets_cube" / "cube_tosses.npz").write_bytes(b"not it")
    with pytest.raises(RecordingError, match=r"SHA-256 is .* expected c9df68f2"):
        datasets.contactnets_cube()


def test_a_set_that_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="no set 'cats'; there are ibm_double_pendulum"):
        datasets.find("cats")
