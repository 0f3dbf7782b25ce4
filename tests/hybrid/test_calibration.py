"""Offsets, gains and delays that a fit found travel with the model; files without them stay as they were."""

import json
import zipfile

import pytest

from knuckle.hybrid import Calibration, Hybrid, HybridFileError, load_hybrid, save_hybrid
from knuckle.hybrid.container import MANIFEST, packed
from knuckle.hybrid.file import difference
from tests.hybrid.examples import PENDULUM

FOUND = Calibration.of(
    offsets={"q": [0.1, -0.2], "pixels": [3.0]},
    gains={"qd": [1.1, 0.9]},
    drive_gains={"shoulder": 8.4},
    sensor_delay=0.003,
    actuator_delay=-0.001,
    effort_delay=0.0056,
)


def test_a_calibration_comes_back_bit_for_bit(tmp_path):
    save_hybrid(tmp_path / "a.knuckle", PENDULUM, calibration=FOUND)
    again = load_hybrid(tmp_path / "a.knuckle")
    assert again.calibration == FOUND and difference(Hybrid(PENDULUM, calibration=FOUND), again) is None
    said = " ".join(FOUND.in_words())
    assert "delay of actuators: -0.001 s" in said and "offsets of q: 0.1, -0.2" in said and "shoulder 8.4" in said


def test_a_file_without_one_has_the_version_that_older_programs_read(tmp_path):
    save_hybrid(tmp_path / "a.knuckle", PENDULUM)
    with zipfile.ZipFile(tmp_path / "a.knuckle") as file:
        manifest = json.loads(file.read(MANIFEST))
    assert manifest["version"] == 1 and "calibration" not in manifest
    again = load_hybrid(tmp_path / "a.knuckle")
    assert not again.calibration and again.calibration.in_words() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offsets": {"q": [1.0]}}, "offsets of q: expected 2 numbers, got 1"),
        ({"gains": {"q": [1.0, 0.0]}}, "gains not 0"),
        ({"sensor_delay": 100.0}, "sensor_delay: expected less than 10 s"),
        ({"sensor_delay": "x"}, "sensor_delay: expected a finite number"),
        ({"drive_gains": [1.0]}, "drive_gains: expected names and numbers"),
        ({"drive_gains": {"shoulder": True}}, "shoulder: expected a finite number"),
        ({"offsets": {"q": "ab"}}, "q: expected a list of finite numbers"),
        ({"more": 1}, "calibration: expected actuator_delay"),
    ],
)
def test_a_damaged_calibration_is_refused_with_its_place(change, said, tmp_path):
    path = tmp_path / "a.knuckle"
    save_hybrid(path, PENDULUM, calibration=FOUND)
    with zipfile.ZipFile(path) as file:
        manifest = json.loads(file.read(MANIFEST))
        arrays = {name.removesuffix(".npy"): file.read(name) for name in file.namelist() if name != MANIFEST}
    manifest["calibration"] |= change
    path.write_bytes(packed(manifest, arrays))
    with pytest.raises(HybridFileError, match=said):
        load_hybrid(path)


def test_what_no_model_can_have_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="drive gain of elbow: expected a finite number other than 0"):
        save_hybrid(tmp_path / "a.knuckle", PENDULUM, calibration=Calibration.of(drive_gains={"elbow": 0.0}))
