"""`ilqr`: one plan for one problem."""

from __future__ import annotations

from typing import Any

from knuckle.control.costs import Cost
from knuckle.control.plan import Plan
from knuckle.control.planner import CONVERGED, Planner
from knuckle.hybrid import Hybrid
from knuckle.model.model import Leaf, Model, State


def ilqr(
    model: Model | Hybrid,
    state: State,
    running: Cost | None = None,
    terminal: Cost | None = None,
    *,
    steps: int,
    dt: float | None = None,
    controls: Leaf | None = None,
    states: State | None = None,
    max_iterations: int = 200,
    tolerance: float = CONVERGED,
    seconds: float = float("inf"),
    **options: Any,
) -> Plan:
    """Controls that minimise the sum of running(time, state, control) over the knots and terminal(time, state).

    Iterative LQR (Li and Todorov 2004) or DDP with control limits by projected Newton steps (Tassa, Mansard and Todorov
    2014), with multiple shooting (Giftthaler et al. 2018). To plan many times, make a `Planner` once.

    Args:
        model: a model, or a hybrid (the result of a fit) with its networks, contact, integrator and time step.
        steps: number of knots, `dt` [s] apart; the control is held from knot to knot.
        controls: where the search starts, (steps, nu) or (nu,); by default zero, or what holds servos.
        states: at all knots (steps + 1): where segments start in multiple shooting.
        tolerance: of the cost: estimated distance to its minimum at which the search has converged.
        substeps: steps of the simulation from knot to knot.
        limits: of the controls: "model" (where its actuators saturate), (lower, upper) within those, or None for a
            robot whose controls have no limits.
        method: "ilqr", or "ddp" with second derivatives of the dynamics and of all costs.
        segments: more than one is multiple shooting, for long or unstable horizons.
        derivative: "clipped", or "unclipped" for servos whose force limits make their derivative zero.
        integrator, contact, blueprint, prescribed: as in `kn.step`.
    """
    planner = Planner(model, running, terminal, steps=steps, dt=dt, **options)
    how = {"max_iterations": max_iterations, "tolerance": tolerance, "seconds": seconds}
    return planner.plan(state, controls, states=states, **how)
