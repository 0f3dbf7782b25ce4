"""What `knuckle fit` does on request beside the fit: posterior samples, and the next experiment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from knuckle.cli_common import at_work, out, plain

if TYPE_CHECKING:
    from knuckle.sysid import Excitation, Fit


class Wishes(NamedTuple):
    """What is asked for beside the fit."""

    posterior: int = 0  # samples
    next_experiment: Path | None = None
    speed: float | None = None  # of the next experiment

    def checked(self) -> Wishes:
        """These, if they can be met."""
        if self.posterior < 0 or self.posterior == 1:
            raise ValueError(f"--posterior must be 2 or more, or 0 for none, got {self.posterior}")
        if self.next_experiment is not None and self.next_experiment.suffix not in (".csv", ".npz"):
            raise ValueError(f"--next-experiment writes .csv or .npz, not {str(self.next_experiment)!r}")
        if self.next_experiment is not None and not self.next_experiment.parent.is_dir():
            raise ValueError(f"--next-experiment: there is no folder {self.next_experiment.parent}")
        if self.speed is not None and (self.next_experiment is None or not self.speed > 0):
            raise ValueError("--next-speed must be positive, and is for --next-experiment")
        return self


def propose(found: Fit, path: Path, speed: float | None) -> Excitation:
    """The motion to record next, on the console and as a file."""
    from knuckle import sysid

    with at_work("looking for the next experiment"):
        proposed = sysid.excite(found, speed=speed)
    sysid.save(proposed.recording, path)
    out.print(plain(repr(proposed)))
    out.print(f"wrote {plain(str(path))}")
    return proposed


def sampled(found: Fit, count: int, path: Path) -> dict:
    """Samples of the parameters as a CSV file and for fit.json."""
    from knuckle import sysid

    samples = sysid.posterior(found, count)
    np.savetxt(path, samples.values, delimiter=",", header=",".join(samples.names), comments="")
    out.print(plain(repr(samples)))
    return {"posterior": {"names": samples.names, "samples": samples.values, "motion": samples.motion}}
