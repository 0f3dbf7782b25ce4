"""Checkpoints in folders that others can write: no name is foreseeable, no link is followed, nothing is left behind."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import numpy as np
import pytest

from knuckle.optim import checkpoint
from knuckle.sysid.report.files import write_whole

STATE = {"x": np.arange(3.0)}


def planted_links(folder: Path, victim: Path, *names: str) -> None:
    for name in names:
        (folder / name).symlink_to(victim)


def test_a_link_at_the_name_of_the_former_temporary_file_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "out"
    folder.mkdir()
    planted_links(folder, victim, f"checkpoint.npz.{os.getpid()}.part", "checkpoint.npz")
    assert checkpoint.save(folder / "checkpoint.npz", STATE, {})
    assert victim.read_text() == "precious"
    assert not (folder / "checkpoint.npz").is_symlink()
    np.testing.assert_array_equal(checkpoint.load(folder / "checkpoint.npz", {})["x"], STATE["x"])


def test_a_report_does_not_follow_links(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "out"
    folder.mkdir()
    planted_links(folder, victim, ".report.html.part", "report.html")
    write_whole(folder / "report.html", "page")
    assert victim.read_text() == "precious" and (folder / "report.html").read_text() == "page"
    assert (folder / "report.html").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_temporary_file_is_new_private_and_gone_after_trouble(tmp_path, monkeypatch):
    made = []

    def noted(**options):
        handle, name = make(**options)
        made.append((Path(name).parent, stat.S_IMODE(os.fstat(handle).st_mode)))
        return handle, name

    def refused(*_):
        raise OSError(28, "No space left on device")

    make = tempfile.mkstemp
    monkeypatch.setattr(checkpoint.tempfile, "mkstemp", noted)
    checkpoint.save(tmp_path / "checkpoint.npz", STATE, {})
    assert made == [(tmp_path, 0o600)]
    monkeypatch.setattr(checkpoint.os, "replace", refused)
    with pytest.warns(UserWarning, match="could not be saved.*No space left"):
        assert not checkpoint.save(tmp_path / "checkpoint.npz", STATE, {})
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.npz"]
