"""Model-predictive control: a plan over a receding horizon at each moment, from where the last one led."""

from __future__ import annotations

from typing import Any

import numpy as np

from knuckle.control.costs import Cost
from knuckle.control.plan import Plan
from knuckle.control.planner import Planner
from knuckle.hybrid import Hybrid
from knuckle.model.model import Leaf, Model, State

PERIOD = 1e-6  # of a knot: rounding of times


class MPC:
    """A controller: `mpc(state, time)` is the control now, within the limits.

    Each call plans over `steps` knots ahead, starting from the last plan moved on by the time that passed. `hold` plans
    serve that many knots each, with their feedback in between. A plan that fails is not used: the last one goes on.
    """

    def __init__(
        self,
        model: Model | Hybrid,
        running: Cost | None = None,
        terminal: Cost | None = None,
        *,
        steps: int,
        dt: float | None = None,
        iterations: int = 5,
        first_iterations: int = 200,
        hold: int = 1,
        controls: Leaf | None = None,
        **options: Any,
    ):
        """As `ilqr`; `iterations` per call, `first_iterations` in the first, which starts from `controls`."""
        self.planner = Planner(model, running, terminal, steps=steps, dt=dt, **options)
        for name, value in (("iterations", iterations), ("first_iterations", first_iterations), ("hold", hold)):
            if isinstance(value, bool) or not hasattr(value, "__index__") or value < 1:
                raise ValueError(f"MPC: {name} must be a whole number of at least 1, got {value!r}")
        if hold > self.planner.steps:
            raise ValueError(f"MPC: hold must be at most the {self.planner.steps} steps of the horizon, got {hold}")
        self.iterations, self.first_iterations, self.hold = int(iterations), int(first_iterations), int(hold)
        self._first_controls = controls
        self.plan: Plan | None = None  # the one that serves
        self.failures = 0  # plans that were not used

    def reset(self) -> None:
        """Forget the last plan: the next call starts anew."""
        self.plan, self.failures = None, 0

    def __call__(self, state: State, time: float = 0.0, **changes: Any) -> np.ndarray:
        """The control at a state and a time [s]; `changes`: another model or other costs (see `Planner`)."""
        if self.plan is None:
            self.plan = self.planner.plan(
                state, self._first_controls, time=time, max_iterations=self.first_iterations, **changes
            )
        elif self._elapsed(time) >= self.hold or changes:
            self._replan(state, time, changes)
        return self._feedback(state, self._elapsed(time))

    def _elapsed(self, time: float) -> int:
        """Knots since the plan that serves was made."""
        assert self.plan is not None
        passed = (time - self.plan.start_time) / self.plan.dt
        if passed < -PERIOD:
            raise ValueError(f"MPC: time went back from {self.plan.start_time:g} to {time:g} s: call reset() before")
        return int(passed + PERIOD)

    def _replan(self, state: State, time: float, changes: dict[str, Any]) -> None:
        last = self.plan
        assert last is not None
        moved = self._elapsed(time)
        controls = shifted(last.controls, moved)
        states = None
        if self.planner.segments > 1:
            states = State(shifted(last.states.q, moved), shifted(last.states.qd, moved))
        try:
            plan = self.planner.plan(
                state, controls, states=states, time=time, max_iterations=self.iterations, **changes
            )
        except ValueError:
            if not np.all(np.isfinite(state.q)) or not np.all(np.isfinite(state.qd)) or moved >= len(last.controls):
                raise
            self.failures += 1  # the roll-out of the moved plan diverges: its feedback goes on
            return
        self.plan = plan

    def _feedback(self, state: State, knot: int) -> np.ndarray:
        plan = self.plan
        assert plan is not None
        knot = min(knot, len(plan.controls) - 1)
        control = plan.controls[knot]
        if knot:
            model = self.planner.model
            change = np.concatenate(
                [model_difference(model, plan.states.q[knot], state.q), state.qd - plan.states.qd[knot]]
            )
            control = control + plan.gains[knot][:, : len(change)] @ change
        return np.clip(control, plan.lower[knot], plan.upper[knot])


def shifted(rows: Leaf, count: int) -> np.ndarray:
    """Rows from `count` on, the last one repeated in place of those that are gone."""
    return np.asarray(rows)[np.minimum(np.arange(len(rows)) + count, len(rows) - 1)]


def model_difference(model: Model, start: Leaf, end: Leaf) -> np.ndarray:
    from knuckle.model.joints import difference

    if model.nq == model.nv:
        return np.asarray(end) - np.asarray(start)
    return np.asarray(difference(model, np.asarray(start), np.asarray(end)))
