"""What the double pendulum of `double_pendulum_video.py` is held against: an LSTM, and MuJoCo's `mujoco.sysid`."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import double_pendulum_data as data
import equinox as eqx
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import optax
from double_pendulum_data import FRAMES, RATE, SEEN, UNIT, Run
from mujoco import rollout as mujoco_rollout
from mujoco import sysid as peer

CHUNK = 4  # frames that the LSTM reads and gives at a time: 10 ms
LINE = np.linalg.pinv(np.vander(np.arange(1.0 - CHUNK, 1.0), 2, increasing=True)).astype(np.float32)  # end and slope
LESSONS = (0.1, 0.2, 0.3, 0.5)  # [s] of roll-outs that it learns from, one after the other
STEP = 1 / RATE / UNIT


class Recurrent(eqx.Module):
    """Two LSTM layers over chunks of frames; the next chunk is a straight line on from the last plus what they give."""

    first: eqx.nn.LSTMCell
    second: eqx.nn.LSTMCell
    out: eqx.nn.Linear

    def __init__(self, hidden: int, key):
        keys = jax.random.split(key, 3)
        self.first = eqx.nn.LSTMCell(8, hidden, key=keys[0])
        self.second = eqx.nn.LSTMCell(hidden, hidden, key=keys[1])
        out = eqx.nn.Linear(hidden, 4 * CHUNK, key=keys[2])
        self.out = eqx.tree_at(lambda o: (o.weight, o.bias), out, (0.1 * out.weight, 0.0 * out.bias))

    def __call__(self, state, last):
        """The chunk after `last`, and the state there."""
        place, speed = LINE @ last
        upper = self.first(jnp.concatenate([place, 10 * speed]), state[0])
        lower = self.second(upper[0], state[1])
        line = place[None] + speed[None] * jnp.arange(1.0, CHUNK + 1.0)[:, None]
        found = (line + 0.1 * self.out(lower[0]).reshape(CHUNK, 4)).reshape(CHUNK, 2, 2)
        length = jnp.sqrt(jnp.sum(found**2, axis=2, keepdims=True) + 1e-6)
        return (upper, lower), (found / length).reshape(CHUNK, 4)

    def predict(self, seen, chunks: int):
        """Frames after those seen: arms as vectors of length 1."""
        zero = jnp.zeros(self.first.hidden_size)
        shown = seen.reshape(-1, CHUNK, 4)
        state = ((zero, zero), (zero, zero))
        for chunk in shown[:-1]:
            state, _ = self(state, chunk)

        def following(carry, _):
            state, chunk = self(*carry)
            return (state, chunk), chunk

        _, found = jax.lax.scan(following, (state, shown[-1]), None, length=chunks)
        return found.reshape(-1, 4)


def arms(markers: np.ndarray, second: float) -> np.ndarray:
    """Both arms as vectors of length 1."""
    return np.concatenate([markers[..., :2], (markers[..., 2:] - markers[..., :2]) / second], axis=-1)


def placed(vectors: np.ndarray, second: float) -> np.ndarray:
    """Markers of arms: the inverse of `arms`."""
    return np.concatenate([vectors[..., :2], vectors[..., :2] + second * vectors[..., 2:]], axis=-1)


class Draw:
    """Windows at random places of random runs, half of them seen from behind, as gravity has no side."""

    def __init__(self, series: Sequence[np.ndarray], batch: int):
        self.series, self.batch, self.rng = series, batch, np.random.default_rng(0)

    def __call__(self, seconds: float) -> np.ndarray:
        frames = SEEN + round(seconds * RATE)
        chosen = [self.series[i] for i in self.rng.integers(len(self.series), size=self.batch)]
        starts = [int(self.rng.integers(len(s) - frames)) for s in chosen]
        windows = np.stack([s[a : a + frames] for s, a in zip(chosen, starts, strict=True)])
        sides = np.where(self.rng.random(self.batch) < 0.5, -1, 1).astype(np.float32)[:, None]
        windows[..., 1::2] *= sides[:, None]
        return windows


def trained(
    runs: Sequence[Run], shown: np.ndarray, updates: int, hidden: int, batch: int = 64
) -> Callable[[np.ndarray], np.ndarray]:
    """An LSTM trained in float32 on roll-outs, short ones first; its predictions.

    Of the weights at twenty times those stay that are best on the windows shown.
    """
    second = data.second_arm(runs)
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):  # optax counts in integers
        looks = _weights(Draw([arms(run.markers, second).astype(np.float32) for run in runs], batch), updates, hidden)
        kept = min(((net, _score(net, second, shown, began)) for net, began in looks), key=lambda pair: pair[1])
    return _predicts(kept[0], second)


def _score(net: Recurrent, second: float, shown: np.ndarray, note: str) -> float:
    errors = data.errors(_predicts(net, second), shown)
    print(f"  LSTM, {note}: {', '.join(f'{e:.1f}' for e in errors.mean(0))} mm", flush=True)
    return float(np.log(errors).mean())


def _predicts(net: Recurrent, second: float) -> Callable[[np.ndarray], np.ndarray]:
    def predicted(seen: np.ndarray) -> np.ndarray:
        with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
            following = np.asarray(_following(net, arms(seen, second).astype(np.float32)), float)
        return np.concatenate([seen, placed(following, second)])

    return predicted


@eqx.filter_jit
def _following(net: Recurrent, seen):
    return net.predict(seen, (FRAMES - SEEN) // CHUNK)


def _weights(draw: Draw, updates: int, hidden: int) -> Iterator[tuple[Recurrent, str]]:
    """The network at twenty times of its training, and when that was."""
    net = Recurrent(hidden, jax.random.key(0))
    optimiser = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(3e-3, updates, 0.01))
    )
    memory = optimiser.init(eqx.filter(net, eqx.is_array))

    def loss(net, windows):
        chunks = (windows.shape[1] - SEEN) // CHUNK
        off = jax.vmap(lambda w: net.predict(w[:SEEN], chunks) - w[SEEN:])(windows)
        return jnp.mean(jnp.sqrt(jnp.mean(off**2, axis=(1, 2)) + 1e-6))  # what is off far counts no more than that

    @eqx.filter_jit
    def update(net, memory, windows):
        value, slope = eqx.filter_value_and_grad(loss)(net, windows)
        change, memory = optimiser.update(slope, memory)
        return eqx.apply_updates(net, change), memory, value

    began = time.perf_counter()
    for k in range(updates):
        seconds = LESSONS[len(LESSONS) * k // updates]
        net, memory, value = update(net, memory, draw(seconds))
        if (k + 1) % max(updates // 20, 1) == 0:
            spent = time.perf_counter() - began
            yield net, f"{hidden} wide, update {k + 1}, {seconds:g} s, loss {float(value):.4f}, {spent:.0f} s"


XML = f"""<mujoco><option timestep="{STEP}" integrator="RK4" gravity="0 0 -0.17"><flag contact="disable"/></option>
<worldbody><body name="upper"><joint name="shoulder" axis="0 1 0" armature="0.5" damping="1e-3" frictionloss="1e-3"/>
<inertial pos="0 0 -0.3" mass="3" diaginertia="0.05 0.05 0.05"/>
<body name="lower" pos="0 0 -1"><joint name="elbow" axis="0 1 0" damping="1e-3" frictionloss="1e-3"/>
<inertial pos="0 0 -0.15" mass="1" diaginertia="0.08 0.08 0.08"/></body></body></worldbody>
<actuator><motor name="none" joint="shoulder"/></actuator>
<sensor><jointpos joint="shoulder"/><jointpos joint="elbow"/></sensor></mujoco>"""


def _set(owner: Callable[[mujoco.MjSpec], Any], field: str, index: int | None = None):
    def write(spec: mujoco.MjSpec, parameter: Any) -> None:
        held = getattr(owner(spec), field)
        if np.ndim(held):
            held[index or 0] = parameter.value[0]
        else:
            setattr(owner(spec), field, parameter.value[0])

    return write


def parameters() -> Any:
    """The same as `kn.fit` has free, from the same first guess."""
    rows = [("shoulder.armature", 0.5, 0.01, 5.0, _set(lambda s: s.joint("shoulder"), "armature"))]
    for body, z in (("upper", -0.3), ("lower", -0.15)):
        rows += [(f"{body}.com.x", 0.0, -0.3, 0.3, _set(lambda s, body=body: s.body(body), "ipos", 0))]
        rows += [(f"{body}.com.z", z, -1.5, 0.5, _set(lambda s, body=body: s.body(body), "ipos", 2))]
    for joint in ("shoulder", "elbow"):
        for field in ("damping", "frictionloss"):
            write = _set(lambda s, joint=joint: s.joint(joint), field)
            rows += [(f"{joint}.{field}", 1e-3, 0.0, 0.1, write)]
    rows += [("gravity.x", 0.0, -0.1, 0.1, _set(lambda s: s.option, "gravity", 0))]
    rows += [("gravity.z", -0.17, -0.4, -0.05, _set(lambda s: s.option, "gravity", 2))]
    found = peer.ParameterDict()
    for name, guess, low, high, write in rows:
        found.add(peer.Parameter(name, guess, low, high, modifier=write))
    return found


def identified(runs: Sequence[Run], stages: Sequence[tuple[float, int]]) -> list[mujoco.MjModel]:
    """Models that `mujoco.sysid` finds on pieces of growing length; starts are smoothed angles and speeds, and held."""
    found, models = parameters(), []
    for seconds, count in stages:
        spec = mujoco.MjSpec.from_string(XML)
        model = spec.compile()
        pieces = data.pieces(runs, round(seconds * RATE) + 1, count)
        times = STEP * np.arange(len(pieces[0].q))
        signals = [(f"{joint}_qpos", 1, peer.SignalType.MjStateQPos) for joint in ("shoulder", "elbow")]
        sequences = peer.ModelSequences(
            "pendulum",
            spec,
            [f"piece {k}" for k in range(count)],
            [peer.create_initial_state(model, p.smooth_q[0], p.qd[0], np.zeros(0)) for p in pieces],
            [peer.TimeSeries(times, np.zeros((len(times), 1)))] * count,
            [peer.TimeSeries.from_custom_map(times, p.q, signals) for p in pieces],
        )
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            found, _ = peer.optimize(
                found.move_off_bounds(),
                peer.build_residual_fn(models_sequences=[sequences], modify_residual=_plain_residual),
                verbose=False,
                x_scale="jac",
                max_iters=25,
            )
        print(f"  mujoco.sysid, {seconds:g} s: {time.perf_counter() - began:.0f} s", flush=True)
        models.append(peer.apply_param_modifiers(found, mujoco.MjSpec.from_string(XML)))
    return models


def _plain_residual(params, predicted, measured, model, return_pred_all, state, **options):
    """Differences of angles as they are: by default each is divided by the size of its angle, however large."""
    off = state[: len(measured.data) - 1, 1:3] - measured.data[1:]
    return off, measured, measured


class Mujoco:
    """Markers of a MuJoCo model, from the state that fits the frames seen best."""

    def __init__(self, model: mujoco.MjModel, second: float, found_start: Callable):
        self.model, self.data, self.second, self.found_start = model, mujoco.MjData(model), second, found_start

    def motion(self, starts: np.ndarray, frames: int) -> np.ndarray:
        first = np.concatenate([np.zeros((len(starts), 1)), starts], axis=1)
        states, _ = mujoco_rollout.rollout(self.model, self.data, first, nstep=frames - 1)
        q = np.concatenate([starts[:, None, :2], states[..., 1:3]], axis=1)
        angles = np.cumsum(q, axis=-1)[..., None]
        vectors = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1)
        return placed(vectors.reshape(*q.shape[:-1], 4), self.second)

    def __call__(self, seen: np.ndarray) -> np.ndarray:
        def function(x):
            rows = self.motion(np.concatenate([x[None], x + 1e-6 * np.eye(4)]), SEEN).reshape(5, -1)
            return rows[0] - seen.reshape(-1), (rows[1:] - rows[0]).T / 1e-6

        return self.motion(self.found_start(function, seen)[None], FRAMES)[0]
