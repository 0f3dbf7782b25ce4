"""`discover`: from a model and recordings that disagree to what the model is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from knuckle.contact.resolve import ContactModel
from knuckle.integrate import RK4, Integrator, SemiImplicitEuler
from knuckle.model.model import Model
from knuckle.sysid.compared import check_compared
from knuckle.sysid.discovery.library import Candidate, Library, make_library
from knuckle.sysid.discovery.network import SparseNetwork, train_sparse
from knuckle.sysid.discovery.refine import Refined, refine
from knuckle.sysid.discovery.result import Discovery, HeldOutError, Row
from knuckle.sysid.discovery.segments import SEEN, Point, Segments, compiled, descend, normal, prediction_errors, settle
from knuckle.sysid.discovery.select import Choice, Evidence, Selector, fold_numbers, gather, stability
from knuckle.sysid.discovery.setting import LONGER, Setting
from knuckle.sysid.entries import weights_of_entries
from knuckle.sysid.noise_kinds import Given
from knuckle.sysid.recording import Recording
from knuckle.sysid.selection import subset
from knuckle.sysid.shooting import Observe
from knuckle.sysid.shots import Drive, Shots
from knuckle.sysid.task import noise_given, noise_in, parts_of

ROUNDS = 4  # of linearisation and selection
ITERATIONS = 12
VALIDATION = 0.3  # share of the training segments that chooses the weight of the lasso


class Screened(NamedTuple):
    """The chosen effects, and what chose them."""

    segments: Segments
    library: Library
    selector: Selector
    choice: Choice
    point: Point
    base: np.ndarray  # free numbers without any effect
    evidence: Evidence


def discover(
    model: Model,
    recordings: Recording | Sequence[Recording],
    *,
    free: Sequence[str] = (),
    contact: ContactModel | None = None,
    integrator: Integrator | None = None,
    segment: float | None = None,
    step: float | None = None,
    noise: Mapping[str, Given] | None = None,
    observe: Mapping[str, Observe] | None = None,
    drive: Drive | None = None,
    held_out: float | Sequence[Recording] = 0.25,
    networks: bool = True,
    resamples: int = 50,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Discovery:
    """Which effects a model lacks, at which tap, as a formula; or that nothing is missing.

    Recordings are cut into short segments whose initial states are free. Their roll-outs are linearised in the
    coefficients of a library of effects, so that every set of effects is a small linear system: sets are compared by
    cross-validation over recordings, and the least invasive that explains the data is refitted inside the simulator.

    Args:
        free: parameters that are estimated beside every candidate (patterns as of `fit`); by default none.
        segment: length of the segments [s]; by default 0.3 s, or 25 samples if that is longer.
        held_out: share of the recordings, or recordings, that nothing is chosen or fitted by.
        networks: whether networks with sparse inputs are trained too, to find what no term of the library explains.
        resamples: of the recordings, to see how often each effect is chosen.
        progress: is told in words what is going on.
    """
    began, tell = time.monotonic(), progress or (lambda text: None)
    runs = [recordings] if isinstance(recordings, Recording) else list(recordings)
    _check(model, runs)
    with jax.enable_x64(True):
        train, test = parts_of(runs, held_out, seed)
        check_compared(model, train, dict(observe or {}), dict(noise or {}))
        used = noise_in(model, train) | noise_given(model, train, dict(noise or {}))
        method = integrator or (RK4() if contact is None else SemiImplicitEuler())
        period = float(np.median([r.period for r in runs]))
        setting = Setting(model, contact, method, used, period, segment, step, drive, dict(observe or {}))
        shots, unseen = setting.shots(train), setting.shots(test) if test else None
        screened = _screen(setting, shots, free, tell)
        chosen = _chosen_once(screened)
        refined = _refined(setting, screened, chosen, train, tell)
        network = _network(setting, shots, seed, tell) if networks else None
        tell("predicting held-out data")
        errors = [] if unseen is None else _held_out(screened, network, unseen)
        ties = _ties(screened)
        tell("resampling recordings")
        often = stability(screened.evidence, screened.library.candidates, resamples, seed)
        used_shots = shots if unseen is None else unseen
        return Discovery(
            model=model if refined is None else refined.parameters.put(model, contact, _own(refined))[0],
            described=model,
            contact=contact,
            blueprint=None if refined is None else refined.blueprint,
            effects=tuple(chosen),
            ties=ties,
            rows=_rows(screened, often),
            coefficients=() if refined is None else refined.coefficients,
            network=network,
            held_out=tuple(errors),
            horizon=(1 - SEEN) * (used_shots.samples - 1) * used_shots.period,
            noise=screened.evidence.noise,
            seconds=time.monotonic() - began,
            notes=_notes(screened, unseen),
        )


def _check(model, runs: Sequence) -> None:
    if not isinstance(model, Model):
        raise TypeError(f"discover: expected a Model, got {type(model).__name__}; kn.load(path) reads a robot")
    wrong = next((r for r in runs if not isinstance(r, Recording)), None)
    if wrong is not None:
        raise TypeError(f"discover: recordings: expected Recordings, got {type(wrong).__name__}")
    if not runs:
        raise ValueError("discover: at least one recording is needed")


def _screen(setting: Setting, shots: Shots, free: Sequence[str], tell: Callable[[str], None]) -> Screened:
    """Linearise, choose, refit, and again around what was chosen, until the choice stays."""
    library = make_library(setting.model, setting.motion(shots), free=free, contact=setting.contact)
    simulator = setting.simulator(shots, library.parameters, library.blueprint)
    segments = compiled(simulator)
    tell(f"{len(library.candidates)} candidates, {library.size} free numbers, {shots.count} segments, compiling")
    precision = np.concatenate([1 / library.parameters.deviation**2, np.zeros(library.blueprint.size)])
    point = settle(segments, shots, simulator.first)
    if len(library.always):
        point = descend(segments, shots, point, library.always, precision, ITERATIONS)
    base, start = point.free.copy(), point
    folds, rows = fold_numbers(np.asarray(shots.run)), measured_count(setting.model, shots)
    choice, selector, evidence, last = None, None, None, None
    for number in range(ROUNDS):
        evidence = gather(normal(point.linear, point.starts), point.free, folds, rows, precision, library.always)
        selector = Selector(evidence, library.candidates)
        choice = selector.search()
        names = ", ".join(library.candidates[k].name for k in choice.chosen.effects) or "nothing"
        tell(f"linearisation {number + 1}: {names}")
        if choice.chosen.effects == last or not len(choice.chosen.columns):
            break
        last = choice.chosen.effects
        kept = np.zeros_like(point.free)
        kept[choice.chosen.columns] = point.free[choice.chosen.columns]
        begun = start if not kept.any() else settle(segments, shots, kept)
        point = descend(segments, shots, begun, choice.chosen.columns, precision, ITERATIONS)
    assert choice is not None and selector is not None and evidence is not None
    return Screened(segments, library, selector, choice, point, base, evidence)


def _chosen_once(screened: Screened) -> list[Candidate]:
    """Chosen effects; of one that was chosen with several scales the strongest, as the refit trains its scale."""
    found: dict[str, Candidate] = {}
    for k in screened.choice.chosen.effects:
        candidate = screened.library.candidates[k]
        size = abs(screened.point.free[candidate.columns[-1]])
        other = found.get(candidate.name)
        if other is None or size > abs(screened.point.free[other.columns[-1]]):
            found[candidate.name] = candidate
    return list(found.values())


def measured_count(model: Model, shots: Shots) -> int:
    """Residuals of all segments that were measured."""
    found = 0
    for key, weight in shots.weight.items():
        entries = jax.vmap(lambda w, key=key: weights_of_entries(model, key, w))(jnp.asarray(weight))
        found += int(np.count_nonzero(np.asarray(entries)))
    return found


def _refined(setting: Setting, screened: Screened, chosen, train: Sequence[Recording], tell) -> Refined | None:
    """The chosen effects and parameters that are free in any case, on longer segments."""
    if not chosen and not len(screened.library.always):
        return None
    tell("refitting the chosen effects on longer segments")
    shots = setting.shots(train, LONGER)
    return refine(setting, screened.library, chosen, screened.point.free, shots)


def _own(refined: Refined) -> np.ndarray:
    return refined.point.free[: refined.parameters.size]


def _network(setting: Setting, shots: Shots, seed: int, tell: Callable[[str], None]) -> SparseNetwork:
    folds = fold_numbers(np.asarray(shots.run))
    count = int(folds.max()) + 1
    drawn = np.random.default_rng(seed).permutation(count)[: max(1, round(VALIDATION * count))]
    aside = np.isin(folds, drawn)
    if aside.all() or not aside.any():
        aside = np.arange(shots.count) % 3 == 0
    learning, judging = (subset(shots, np.flatnonzero(part)) for part in (~aside, aside))
    return train_sparse(setting, learning, judging, seed=seed, progress=tell)


def _held_out(screened: Screened, network: SparseNetwork | None, unseen: Shots) -> list[HeldOutError]:
    """Of the model as described, with the chosen effects, and with networks, over the same segments."""
    found = [_error("model", prediction_errors(screened.segments, unseen, screened.base))]
    if screened.choice.chosen.effects:
        found.append(_error("formula", prediction_errors(screened.segments, unseen, screened.point.free)))
    if network is not None:
        found.append(_error("network", prediction_errors(network.segments, unseen, network.free)))
    return found


def _error(what: str, squares: np.ndarray) -> HeldOutError:
    return HeldOutError(what, float(np.sqrt(np.nanmean(squares))), squares)


def _ties(screened: Screened) -> dict[str, tuple[str, ...]]:
    """Taps that add into the same sum, and effects that explain the data equally well."""
    candidates = screened.library.candidates
    alike = screened.selector.ties(screened.choice.chosen)
    return {
        candidates[k].name: (*candidates[k].ties, *dict.fromkeys(candidates[j].name for j in others))
        for k, others in alike.items()
    }


def _rows(screened: Screened, often: np.ndarray) -> tuple[Row, ...]:
    """Candidates, chosen ones first, then by what they predict."""
    selector, choice = screened.selector, screened.choice
    rows = []
    for k, c in enumerate(screened.library.candidates):
        alone = choice.nothing.error - selector.score((k,)).error
        is_chosen = k in choice.chosen.effects
        other = [e for e in choice.chosen.effects if e != k] if is_chosen else [*choice.chosen.effects, k]
        apart = selector.score(other).error - choice.chosen.error
        given = apart if is_chosen else -apart
        rows.append(Row(c.name, c.tap, c.inputs, c.cost, float(alone), float(given), float(often[k]), is_chosen))
    return tuple(sorted(rows, key=lambda r: (not r.chosen, -r.alone)))


def _notes(screened: Screened, unseen: Shots | None) -> tuple[str, ...]:
    found = []
    if screened.evidence.noise > 1.5:
        found.append(
            f"the richest model leaves {screened.evidence.noise:.2g} times the noise: no sum of the library's terms "
            "explains all of it"
        )
    if unseen is None:
        found.append("nothing was held out: errors of prediction are unknown")
    return tuple(found)
