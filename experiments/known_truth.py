"""Parameters of mechanisms whose truth is known, from noisy logs: how close, how sure, and what cannot be told.

In each run the truth is drawn anew (masses, moments and damping within 20 % of the description, centres of mass about
1 cm off it), moves anew and is measured with new noise. Counted are quantities that the fit calls determined (deviation
below a tenth of what was known before): how far they are from the truth, and how often their 95 % intervals hold it.
Where all inertia is free, and links cannot all be told apart, the quantities are base parameters: the combinations of
masses and moments that forces depend on. An error is relative to the true value (of an entry of a link's first or
second moments: to the largest entry of these), or to a tenth of what was known before where that is more. Logs are made
by RK4 with a step of 1.25 ms; on the ground with the integrator and step of the fit, whose error is of first order.
Two further studies (`known_truth_robust.py`) judge noisy efforts, and predictions of a model that lacks an effect.
Run: python experiments/known_truth.py [--quick] [--seeds FIRST END] [MECHANISM...]. Each run is kept in
experiments/results/known_truth.json at once and is not made again: a study goes on where it was, and may be shared by
processes with seeds of their own. Delete the file to begin anew. The table is of all that is kept (with --quick
nothing is).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import jax
import known_truth_robust as robust
import numpy as np
from known_truth_mechanisms import MECHANISMS, Log, Mechanism, Truth, cartpole, double_pendulum, drawn, prior_deviations

from knuckle import sysid
from knuckle.sysid.parameters import MOMENTS
from knuckle.sysid.uncertainty import interval

RESULTS = Path(__file__).parent / "results"
ENOUGH = 0.1  # a quantity is determined when its deviation is below this share of what was known before
WIDE = 1.96  # deviations of a 95 % interval to each side


def studied(mechanism: Mechanism, seeds: Iterable[int]) -> Iterator[tuple[int, dict, list[str]]]:
    """By seed, what the fit of a log is off, and what it says of itself; each log is of a truth of its own."""
    log, fit, began = Log(mechanism), None, time.perf_counter()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        truth = drawn(mechanism, rng)
        recordings = log(truth, rng)
        if fit is None:
            fit = sysid.fit(mechanism.model, recordings, mechanism.free, held_out=0, **mechanism.options)
        else:
            fit = fit.again(recordings)
        yield seed, compared(fit, mechanism, truth), [fit.certainty.summary(), *fit.certainty.untold()]
        print(f"{mechanism.name} {seed}: {fit.result.status}, {time.perf_counter() - began:.0f} s", flush=True)


def compared(fit: sysid.Fit, mechanism: Mechanism, truth: Truth) -> dict:
    """The true quantities, what the fit is off them, and what it takes as the deviation of that."""
    size, right = fit.parameters.size, np.asarray(mechanism.quantities(*truth))
    quantities = lambda z: mechanism.quantities(*fit.parameters.applied(mechanism.model, mechanism.contact, z))  # noqa: E731
    found = interval(quantities, fit.result.x[:size], fit.certainty.covariance[:size, :size])
    return {
        "truth": digits(right),
        "off": digits(found.value - right),
        "deviation": digits(found.deviation),
        "status": str(fit.result.status),
        "iterations": fit.result.iterations,
        "seconds": round(fit.result.seconds, 2),
        "noise": fit.noise["q"],
        "ties": fit.objective.continuity,
    }


def digits(values: np.ndarray) -> list[float]:
    """Four digits of each."""
    return [float(f"{value:.4g}") for value in values]


def passive_words() -> list[str]:
    """What a fit says of a pendulum that nothing drives when all of its inertia is free: not its mass."""
    pendulum = double_pendulum()
    rng = np.random.default_rng(0)
    truth = drawn(pendulum, rng)
    free = ["*.mass", "*.com", "*.inertia", "*.damping"]
    fit = sysid.fit(pendulum.model, Log(pendulum)(truth, rng), free, held_out=0)
    verdicts = [f"{e.name}: {e.verdict}" for e in fit.estimates if e.name.endswith("mass")]
    return [fit.certainty.summary(), *verdicts, *fit.certainty.untold()]


def described(mechanism: Mechanism) -> dict:
    """A study without runs yet."""
    noise = " and ".join(f"{1e3 * value:g}" for value in dict.fromkeys(np.ravel(mechanism.noise)))
    log = f"{mechanism.runs} x {mechanism.seconds:g} s, noise {noise} mrad or mm"
    told = {"mechanism": mechanism.name, "about": mechanism.about, "log": log, "names": list(mechanism.names)}
    return {**told, "before": digits(prior_deviations(mechanism)), "words": [], "rows": {}}


@contextmanager
def kept(path: Path) -> Iterator[dict]:
    """What is in a file, to be changed, while no other process may; the file is whole at all times."""
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        content = json.loads(path.read_text()) if path.exists() else {"studies": {}, "passive": []}
        yield content
        path.with_suffix(".part").write_text(json.dumps(content, separators=(",", ":")))
        path.with_suffix(".part").replace(path)
    finally:
        os.close(folder)


def extend(path: Path, name: str, seeds: tuple[int, int] | None) -> None:
    """Make the runs with seeds from the first to before the second (None: all of a study) that are not in the file."""
    mechanism = MECHANISMS[name]()
    first, end = seeds or (0, mechanism.truths)
    with kept(path) as content:
        study = content["studies"].setdefault(name, described(mechanism))
        if described(mechanism) != {**study, "words": [], "rows": {}}:
            raise ValueError(f"{path} holds runs of another {name}: {study['about']}, {study['log']}; delete it")
        missing = [seed for seed in range(first, end) if str(seed) not in study["rows"]]
    for seed, row, words in studied(mechanism, missing):
        with kept(path) as content:
            add(content["studies"][name], seed, row, words)


def extend_robust(path: Path, name: str, seeds: tuple[int, int] | None) -> None:
    """The same of the further studies."""
    study = robust.STUDIES[name]
    first, end = seeds or (0, study.truths)
    with kept(path) as content:
        known = content.setdefault("robust", {}).setdefault(name, {})
        missing = [seed for seed in range(first, end) if str(seed) not in known]
    for seed in missing:
        row = study.run(seed)
        print(f"{name} {seed}: {row}", flush=True)
        with kept(path) as content:
            rows = content["robust"][name]
            content["robust"][name] = dict(sorted({**rows, str(seed): row}.items(), key=lambda item: int(item[0])))


def claims(studies: Sequence[dict], more: dict[str, dict]) -> list[dict]:
    """What must hold, with what was measured."""
    made = [robust.within(f"{study['mechanism']}: coverage", counts(study)["covered"]) for study in studies]
    for name, rows in more.items():
        made += robust.STUDIES[name].claims(list(rows.values()))
    return made


def add(study: dict, seed: int, row: dict, words: list[str]) -> None:
    """One more run; what the fit of the first seed says is what the table shows."""
    study["rows"] = dict(sorted({**study["rows"], str(seed): row}.items(), key=lambda item: int(item[0])))
    if next(iter(study["rows"])) == str(seed):
        study["words"] = words


def counts(study: dict) -> dict:
    """Shares over all runs, of the quantities that were determined."""
    before = np.array(study["before"])
    rows = [{key: np.array(row[key]) for key in ("truth", "off", "deviation")} for row in study["rows"].values()]
    determined = np.array([row["deviation"] < ENOUGH * before for row in rows])
    scale = np.array([np.maximum(sizes(study["names"], row["truth"]), 0.1 * before) for row in rows])
    off, deviation = (np.array([row[key] for row in rows])[determined] for key in ("off", "deviation"))
    own = np.array([np.maximum(np.abs(row["truth"]), 0.1 * before) for row in rows])[determined]
    share, z = np.abs(off) / scale[determined], off / deviation
    return {
        "runs": len(rows),
        "determined": determined.sum() / len(rows),
        "quantities": len(before),
        "near": float(np.mean(share < 0.01)),
        "near_own": float(np.mean(np.abs(off) / own < 0.01)),
        "off": float(np.quantile(share, 0.95)),
        "covered": float(np.mean(np.abs(z) < WIDE)),
        "spread": float(np.sqrt(np.mean(z**2))),
    }


def sizes(names: Sequence[str], truth: np.ndarray) -> np.ndarray:
    """Of each quantity, or of the largest where it is an entry of a link's first or second moments."""
    groups = np.array([_group(name) for name in names])
    return np.array([np.abs(truth[groups == group]).max() for group in groups])


def _group(name: str) -> str:
    """The vector or tensor that a quantity is part of; a sum goes by what leads it."""
    owner, _, entry = name.split()[0].rpartition(".")
    if entry in (*"xyz", *MOMENTS):
        return owner
    order = "first" if entry in ("mx", "my", "mz") else "second" if entry.startswith("I") else entry
    return f"{owner} {order.partition('[')[0]}"


def table(studies: Sequence[dict], words: Sequence[str]) -> str:
    head = (
        "mechanism",
        "log",
        "runs",
        "determined",
        "within 1 % of the truth",
        "entry by entry",
        "95 % of errors below",
        "covered by 95 % intervals",
    )
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for study in studies:
        c = counts(study)
        cells = (
            f"{study['mechanism']}: {study['about']}", study["log"], str(c["runs"]),
            f"{c['determined']:.1f} of {c['quantities']}", f"{c['near']:.1%}", f"{c['near_own']:.1%}",
            f"{c['off']:.2%}", f"{c['covered']:.1%}",
        )  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", str(__doc__).partition("\n")[2].partition("Run:")[0].strip(), ""]
    for study in studies:
        lines += [f"## {study['mechanism']}", "", *(f"- {line}" for line in study["words"]), ""]
    return "\n".join([*lines, "## double pendulum with all inertia free", "", *(f"- {line}" for line in words)])


def quick() -> dict:
    """Eight runs of the cartpole, which are not kept."""
    mechanism = cartpole()
    study = described(mechanism)
    for seed, row, words in studied(mechanism, range(8)):
        add(study, seed, row, words)
    return study


def main(arguments: Sequence[str] | None = None) -> list[dict]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mechanisms", nargs="*", choices=[*MECHANISMS, *robust.STUDIES, []], help="by default all")
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("FIRST", "END"), help="END is not made")
    parser.add_argument("--quick", action="store_true", help="the cartpole, 8 runs, nothing written")
    options = parser.parse_args(arguments)
    path = RESULTS / "known_truth.json"
    with jax.enable_x64(True):
        if options.quick:
            return [quick()]
        for name in options.mechanisms or (*MECHANISMS, *robust.STUDIES):
            (extend_robust if name in robust.STUDIES else extend)(path, name, options.seeds)
    with jax.enable_x64(True), kept(path) as content:
        content["passive"] = content["passive"] or passive_words()
        studies = [content["studies"][name] for name in MECHANISMS if content["studies"].get(name, {}).get("rows")]
        more = {name: rows for name, rows in content.get("robust", {}).items() if rows}
        content["claims"] = claims(studies, more)
        text = table(studies, content["passive"]) + "\n\n" + robust.table(more, content["claims"])
        (RESULTS / "known_truth.md").write_text(text + "\n")
    print(text)
    return studies


if __name__ == "__main__":
    main()
