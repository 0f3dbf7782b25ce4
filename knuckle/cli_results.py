"""The folder of results of a fit: each file whole, and none that differs from the fit without a word."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import knuckle as kn
from knuckle.cli_common import err, out, plain, worded
from knuckle.cli_folder import all_or_nothing, mark_written

if TYPE_CHECKING:
    from knuckle.deadline import Deadline
    from knuckle.sysid import Excitation, Fit, Recordings
    from knuckle.sysid.report import Answer

HYBRID, SAMPLES = "model.knuckle", "posterior.csv"
CHECKPOINT = "checkpoint.npz"
CHECKPOINTS = (CHECKPOINT, "checkpoint.rounds.npz")


def names_of_results(robot: str, folder: Path) -> list[str]:
    """Files that a fit of this robot may write into the folder, but for the robot itself."""
    stem = Path(robot).stem
    names = [HYBRID, SAMPLES, *CHECKPOINTS, "fit.json", "report.html", f"{stem}.urdf", f"{stem}.xml"]
    fitted = [path.with_stem(f"{path.stem}_fitted").name for path in map(Path, (HYBRID, f"{stem}.urdf", f"{stem}.xml"))]
    return [name for name in (*names, *fitted) if not _is_robot(folder / name, robot)]


def _is_robot(path: Path, robot: str) -> bool:
    return path.exists() and Path(robot).exists() and path.samefile(robot)


def note(text: str) -> None:
    out.print(f"[yellow]note:[/] {plain(text)}")


def warn(text: str) -> None:
    err.print(f"[bold red]warning:[/] {plain(text)}")


class Results:
    """What a fit found and where it is written: the robot, the hybrid model, fit.json and report.html."""

    def __init__(
        self,
        folder: Path,
        robot: str,
        found: Fit,
        recordings: Recordings,
        points,
        about: dict[str, Any],
        deadline: Deadline | None = None,
        answer: Answer | None = None,
    ):
        self.answer = answer
        self.folder, self.robot, self.found, self.recordings = folder, robot, found, recordings
        self.points, self.about, self.notes, self.deadline = points, about, list[str](), deadline

    def write(self) -> None:
        """All of the files, or what was there before stays."""
        from knuckle.sysid.measuring import fitted_calibration

        found, about = self.found, self.about
        rest = {"contact": found.contact, "integrator": found.task.integrator, "dt": found.step}
        rest["calibration"] = fitted_calibration(found, self.recordings.drive_gains)
        origin = {"robot": about["robot"], "logs": about["logs"]}
        with all_or_nothing(self.folder) as (part, written):
            hybrid = self._beside_the_robot(HYBRID)
            kn.save_hybrid(part / hybrid.name, found.model, found.blueprint, notes=origin, **rest)
            fitted = self._saved_robot(part)
            self._report(part)
            if fitted is not None and fitted.suffix == ".urdf":
                mark_written(self.folder, [fitted.name])
                kn.save(found.plain_model, fitted)  # where it stays: it refers to meshes from there
                written.append(fitted)
        self._earlier(written)
        out.print(f"wrote {plain(' '.join(sorted(map(str, written))))}")

    def write_again(self, **about) -> None:
        """fit.json and report.html, with more in them."""
        self.about |= about
        with all_or_nothing(self.folder) as (part, _):
            self._report(part)

    def remember(self, text: str) -> None:
        """A note on the console and in the report."""
        note(text)
        self.notes.append(text)

    def regret(self, text: str) -> None:
        """The same as a warning."""
        warn(f"{text}; the fit itself is in {self.folder}")
        self.notes.append(text)

    def _report(self, part: Path) -> None:
        from knuckle.sysid.report import write_report

        more = {"search": self.points, "recordings": self.recordings, "about": self.about | {"notes": self.notes}}
        write_report(
            part, self.found, findings=self.recordings.report, deadline=self.deadline, answer=self.answer, **more
        )

    def _saved_robot(self, part: Path) -> Path | None:
        """The robot in its own format if that holds what was fitted, else as MJCF; a URDF is only tried here."""
        from knuckle.sysid.described import lacking, lacking_in_words, with_contact_friction

        stem, found = Path(self.robot).stem, self.found
        if Path(self.robot).suffix.lower() == ".urdf":
            path = self._beside_the_robot(f"{stem}.urdf")
            try:
                with tempfile.TemporaryDirectory() as trial:
                    kn.save(found.plain_model, Path(trial) / path.name)
            except ValueError as error:
                warn(f"{error}\nso the fitted robot is written as MJCF, {stem}.xml")
                self.notes.append(f"URDF cannot hold what was fitted: the fitted robot is MJCF, {stem}.xml")
            else:
                self._say_what_lacks(path, lacking(found, friction=False), lacking_in_words)
                return path
        path = self._beside_the_robot(f"{stem}.xml")
        try:
            kn.save(with_contact_friction(found), part / path.name)
        except ValueError as error:
            warn(f"{error}; the fitted model is in {self.folder / HYBRID}")
            self.notes.append(f"neither URDF nor MJCF can hold the fitted model, which is in {HYBRID}")
            return None
        self._say_what_lacks(path, lacking(found, friction=True), lacking_in_words)
        return path

    def _say_what_lacks(self, path: Path, names: Sequence[str], in_words) -> None:
        self.about |= {"robot_file": path.name, "robot_file_lacks": names}
        if names:
            self.remember(in_words(path.name, names))

    def _beside_the_robot(self, name: str) -> Path:
        """A file of the folder that is not the robot itself."""
        path = self.folder / name
        return path.with_stem(f"{path.stem}_fitted") if _is_robot(path, self.robot) else path

    def _earlier(self, written: Sequence[Path]) -> None:
        """Say which files of an earlier fit stay that this one does not write."""
        stem = Path(self.robot).stem
        for path in (self.folder / name for name in (f"{stem}.urdf", f"{stem}.xml", SAMPLES)):
            if path.exists() and path not in written and not _is_robot(path, self.robot):
                note(f"{path} is not of this fit but of an earlier one")


def about_fit(robot: str, recordings: Recordings, logs: Sequence[str], options: dict) -> dict[str, Any]:
    """What was asked for, as plain data."""
    from knuckle.sysid.numbers import plain_data

    runs = [
        {"name": r.name, "samples": len(r), "duration": r.duration, "channels": list(r.channels)} for r in recordings
    ]
    asked = {
        "knuckle": kn.__version__,
        "robot": robot,
        "logs": [str(log) for log in logs],
        "recordings": runs,
        "options": worded(options),
    }
    return plain_data(asked)


def sampled_for_report(posterior: dict, found: Fit) -> dict[str, Any]:
    """Posterior samples with what the fit itself says of the same numbers."""
    fitted = {e.name: e for e in found.estimates}
    return posterior | {"fitted": [fitted[name]._asdict() for name in posterior["names"]]}


def proposed_for_report(proposed: Excitation, path: Path) -> dict[str, Any]:
    """The next experiment: its motion, and what it would tell."""
    recording = proposed.recording
    shown = [key for key in ("q", "control") if key in recording.channels and recording[key].values.shape[1]]
    return {
        "file": path,
        "duration": recording.duration,
        "tries": proposed.tries,
        "worst_before": proposed.worst_before,
        "worst_after": proposed.worst_after,
        "before": [e._asdict() for e in proposed.before],
        "expected": [e._asdict() for e in proposed.expected],
        "time": recording.time,
        "names": {key: recording[key].names for key in shown},
        "values": {key: recording[key].values for key in shown},
    }
