"""What `knuckle simulate` writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

import knuckle as kn
from knuckle.cli_common import out, plain
from knuckle.cli_folder import all_or_nothing

if TYPE_CHECKING:
    from knuckle.sysid import Recording

FILES = ("trajectory.npz", "trajectory.csv", "motion.png")


def write(model: kn.Model, motion: kn.Trajectory, folder: Path, title: str) -> None:
    """trajectory.npz, trajectory.csv and motion.png."""
    from knuckle.viewer import energies as energies_of
    from knuckle.viewer import motion_figure

    energies = energies_of(model, motion)
    arrays = {"time": motion.time, "q": motion.q, "qd": motion.qd, "control": motion.control}
    arrays = {name: np.asarray(values) for name, values in arrays.items()} | energies
    columns = ["time", *column_names(model), *energies]
    table = np.column_stack(list(arrays.values()))
    arrays_file, table_file, figure_file = FILES
    with all_or_nothing(folder) as (part, _):
        np.savez_compressed(part / arrays_file, allow_pickle=False, columns=columns, **arrays)
        np.savetxt(part / table_file, table, delimiter=",", header=",".join(columns), comments="", fmt="%.12g")
        motion_figure(model, motion, energies, title).savefig(part / figure_file)
    out.print(f"wrote {plain(' '.join(str(folder / name) for name in FILES))}")


def compare(model: kn.Model, motion: kn.Trajectory, log: Recording) -> None:
    """How far the motion is from the recorded one."""
    off = _distance(model, motion, log)
    if off is not None:
        out.print(f"off the recorded positions: {off:.4g} rad or m (root mean square)")


def _distance(model: kn.Model, motion: kn.Trajectory, log: Recording) -> float | None:
    """Root mean square of the differences of positions that were measured, at the samples that were simulated."""
    from knuckle.sysid.entries import weights_of_entries

    if "q" not in log.channels:
        return None
    time, since, channel = np.asarray(motion.time), log.time - log.time[0], log["q"]
    there = since <= time[-1] + 1e-9
    off = np.asarray(
        jax.vmap(lambda a, b: kn.difference(model, a, b))(
            channel.values[there], _between(model, time, np.asarray(motion.q), since[there])
        )
    )
    measured = np.asarray(weights_of_entries(model, "q", jnp.asarray(channel.valid[there].astype(float)))) > 0
    return float(np.sqrt(np.mean(np.square(off[measured])))) if measured.any() else None


def _between(model: kn.Model, time: np.ndarray, q: np.ndarray, at: np.ndarray) -> jax.Array:
    """Positions at times between steps, linear along the joints."""
    before = np.clip(np.searchsorted(time, at + 1e-9, side="right") - 1, 0, len(time) - 2)
    share = (at - time[before]) / (time[1] - time[0])

    def part(a, b, share):
        return jnp.asarray(kn.retract(model, a, share * kn.difference(model, a, b)))

    return jax.vmap(part)(q[before], q[before + 1], np.clip(share, 0.0, 1.0))


COORDINATES = {"planar": ".x .y .angle", "ball": ".w .x .y .z", "free": ".x .y .z .qw .qx .qy .qz"}
VELOCITIES = {"planar": ".x .y .angle", "ball": ".wx .wy .wz", "free": ".vx .vy .vz .wx .wy .wz"}


def column_names(model: kn.Model) -> list[str]:
    """One name per entry of q, qd and control, in order."""
    joints = list(zip(model.joint_names, model.topology.kind, strict=True))
    q = [f"q {name}{part}" for name, kind in joints for part in COORDINATES.get(kind, "").split() or [""]]
    qd = [f"qd {name}{part}" for name, kind in joints for part in VELOCITIES.get(kind, "").split() or [""]]
    return [*q, *qd, *(f"u {name}" for name in model.actuators.names)]
