"""Small JAX programs of the kinds that native code is for, each with arguments."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

_random = np.random.default_rng(0)
SQUARE = _random.normal(size=(6, 6))
POSITIVE = SQUARE @ SQUARE.T + 6 * np.eye(6)
VECTOR = _random.normal(size=6)
LARGE = _random.normal(size=(40, 40))
LARGE_POSITIVE = LARGE @ LARGE.T + 40 * np.eye(40)
LONG = _random.normal(size=2000)
INTEGERS = _random.integers(-20, 20, 10)
SMALL_INTEGERS = _random.integers(-3, 4, 10)
ROWS = _random.integers(0, 40, 50)
FIFTY_ROWS = _random.normal(size=(50, 40))


def elementwise(x):
    return (
        jnp.sign(x), jnp.round(x), jnp.floor(x), jnp.ceil(x), jnp.isfinite(x), jnp.mod(x, 0.7), x**3, x**-2,
        jnp.abs(x) ** 1.5, jnp.arctan2(x, x.T), jnp.cbrt(x), jnp.clip(x, -0.5, 0.5), jnp.where(x > 0, x, -1.0),
        jnp.sinh(x), jnp.cosh(x), jnp.tan(x), jnp.arcsinh(x), jnp.arcsin(jnp.tanh(x)), jnp.arccos(jnp.tanh(x)),
        jnp.arctan(x), jnp.arctanh(0.5 * jnp.tanh(x)), jnp.arccosh(1 + x**2), jnp.exp2(x), jnp.expm1(x),
        jnp.log1p(x**2), jnp.log(jnp.abs(x)), jax.lax.rsqrt(x**2 + 1), jnp.hypot(x, x.T),
        jnp.nextafter(x, 9.0),
        jnp.copysign(x, x.T),
    )  # fmt: skip


def activations(x):
    return (
        jax.nn.softplus(x), jax.nn.gelu(x), jax.nn.elu(x), jax.nn.sigmoid(x), jax.nn.softmax(x), jax.nn.relu(x),
        jax.nn.silu(x), jax.nn.log_softmax(x), jax.scipy.special.erf(x), jax.scipy.special.logsumexp(x, axis=0),
        jnp.linalg.norm(x),
    )  # fmt: skip


def integers(i, j):
    return (
        i // j, i % j, jax.lax.div(i, j), jax.lax.rem(i, j), i << 2, i >> 1, i & j, i | j, i ^ j, ~i, i * j, i - j,
        i / j, jnp.maximum(i, j), jnp.abs(i), i.astype(jnp.float32), (i * 1.7).astype(jnp.int8), i.astype(jnp.uint8),
        i > j, jax.lax.population_count(i), jax.lax.clz(i), i.astype(bool), jnp.sign(j), i**2, -i,
    )  # fmt: skip


def moves(x):
    return (
        jnp.pad(x, ((1, 2), (0, 3))), jax.lax.pad(x, 0.0, ((-1, 0, 1), (0, -2, 0))), jnp.roll(x, 2, 0), x[::-1],
        jnp.tile(x, (2, 1)), jnp.concatenate([x, x], 1), x.T + x, jnp.stack([x[0], x[1]]), x[1:-1:2],
        x.reshape(-1)[3:9], jnp.split(x, 2), jnp.kron(x[:2, :2], x[:2, :2]), jnp.repeat(x[:2], 2, axis=0),
        jnp.triu(x), jnp.diag(x),
    )  # fmt: skip


def products(x):
    return (
        x @ x, (x @ x).T @ x, x @ x[0], x[0] @ x, jnp.einsum("ij,kj->ki", x, x), jnp.outer(x[0], x[1]), jnp.vdot(x, x),
        jnp.einsum("ij,ik->ijk", x[:5], x[:5]).sum(0), x.sum(0), x.sum(1), x.max(), x.prod(1), x.mean(), x.min(axis=0),
    )  # fmt: skip


def indexing(x, i):
    return (
        x[i], x[0:3][i], x[jnp.array([1, 2])], x.at[i].set(2.0), x.at[i].add(x[0]), x.at[2].mul(3.0),
        jax.lax.dynamic_slice(x, (i,), (3,)), jax.lax.dynamic_update_slice(x, jnp.ones(2), (i,)), jnp.take(x, i + 40),
    )  # fmt: skip


def scattering(x, i, u):
    return x.at[i].set(u), x.at[i].add(u), x.at[i].max(u), x.at[i].min(u, mode="clip"), x[i]


def large_indexing(x, i, u):
    return x.at[i].add(u), x.at[:, i].add(u.T), x[i], x[:, i], jax.lax.dynamic_slice(x, (i[0], 0), (3, 40))


def sorting(x):
    return jnp.sort(x), jnp.argsort(x, axis=0), jax.lax.top_k(x, 3), jnp.argmin(x), jnp.argmax(x, axis=1), jnp.median(x)


def cumulative(x):
    return (
        jnp.cumsum(x, axis=0), jnp.cumsum(x, axis=1), jnp.cumprod(x[0]), jax.lax.cummax(x, axis=1), jax.lax.cummin(x),
        jax.lax.cumsum(x, reverse=True), jax.lax.cumlogsumexp(x[0]),
    )  # fmt: skip


def random_numbers(key):
    first, second = jax.random.split(key)
    return jax.random.normal(first, (5,)), jax.random.uniform(second, (3,)), jax.random.randint(key, (4,), 0, 9)


def newton_root(x):
    return jax.lax.while_loop(lambda s: jnp.abs(s * s - x) > 1e-10, lambda s: (s + x / s) / 2, x)


def nested_loops(x):
    def outer(carry, row):
        inner = jax.lax.while_loop(
            lambda s: s[0] < jnp.abs(row.sum()), lambda s: (s[0] + 0.3, s[1] * 1.1), (0.0, carry)
        )
        return inner[1] * 0.9, (inner[0], jnp.sin(row))

    return jax.lax.scan(outer, 1.0, x)


def branches(i, x):
    options = [lambda x: x, lambda x: jnp.sin(x) @ x * x, lambda x: jnp.exp(x) @ LARGE_POSITIVE[:6, :6]]
    return jax.lax.switch(i, options, x), jax.lax.cond(x[0] > 0, lambda x: x @ POSITIVE @ x, lambda x: x.sum(), x)


def running_update(x):
    return jax.lax.fori_loop(1, 1500, lambda i, x: x.at[i].set(x[i - 1] * 0.5 + x[i]), x)


def swapped_carries(x):
    return jax.lax.fori_loop(0, 5, lambda i, s: (s[1] + 1.0, s[0] * 2.0), (x, x[::-1]))


def pendulum_acceleration(q, qd, mass):
    """A double pendulum with unit lengths (Goldstein, problem 1.22)."""
    delta = q[0] - q[1]
    matrix = jnp.array([[mass[0] + mass[1], mass[1] * jnp.cos(delta)], [mass[1] * jnp.cos(delta), mass[1]]])
    force = jnp.array(
        [
            -mass[1] * qd[1] ** 2 * jnp.sin(delta) - (mass[0] + mass[1]) * 9.81 * jnp.sin(q[0]),
            mass[1] * qd[0] ** 2 * jnp.sin(delta) - mass[1] * 9.81 * jnp.sin(q[1]),
        ]
    )
    return jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(matrix), force)


def pendulum_rollout(q, qd, mass, steps=200):
    @jax.checkpoint
    def step(state, _):
        q, qd = state
        qd = qd + 0.002 * pendulum_acceleration(q, qd, mass)
        return (q + 0.002 * qd, qd), q

    return jax.lax.scan(step, (q, qd), None, length=steps)


def pendulum_gradient(q, qd, mass):
    def loss(q, qd, mass):
        (q, qd), path = pendulum_rollout(q, qd, mass)
        return jnp.sum(q**2) + jnp.sum(path**2)

    return jax.value_and_grad(loss, argnums=(0, 1, 2))(q, qd, mass)


def hessian(x):
    return jax.hessian(lambda x: jnp.sum(jnp.sin(x) * x[::-1] ** 2))(x), jax.jacfwd(jnp.sin)(x)


def linear_algebra(a, b, v):
    return (
        jax.scipy.linalg.cho_solve(jax.scipy.linalg.cho_factor(a), v), jnp.linalg.solve(b, v), jnp.linalg.inv(b),
        jnp.linalg.det(b), jnp.abs(jnp.linalg.qr(b)[1]), jnp.linalg.eigvalsh(a),
        jax.scipy.linalg.solve_triangular(b, v, lower=True), jax.scipy.linalg.solve_triangular(b, v, trans=1),
    )  # fmt: skip


def large_linear_algebra(a, b):
    return jnp.linalg.cholesky(a), jnp.linalg.solve(b, b[0]), jnp.linalg.inv(a)


def gradient_of_solve(a, v):
    return jax.grad(lambda a, v: jnp.sum(jnp.linalg.solve(a, v) ** 2), argnums=(0, 1))(a, v)


def _arrays(module):
    return eqx.partition(module, eqx.is_array)


def _network(module, *inputs):
    arrays, rest = _arrays(module)
    return (lambda arrays, *inputs: eqx.combine(arrays, rest)(*inputs)), (arrays, *inputs)


_mlp, _mlp_arguments = _network(eqx.nn.MLP(6, 3, 192, 2, activation=jax.nn.elu, key=jax.random.PRNGKey(0)), VECTOR)
_small, _small_arguments = _network(eqx.nn.MLP(6, 3, 16, 2, activation=jnp.tanh, key=jax.random.PRNGKey(1)), VECTOR)
_gru, _gru_arguments = _network(eqx.nn.GRUCell(6, 24, key=jax.random.PRNGKey(2)), VECTOR, np.zeros(24))


def mlp_gradient(arrays, x):
    return jax.grad(lambda arrays: jnp.sum(_mlp(arrays, x) ** 2))(arrays)


def lstm(arrays, xs):
    cell = eqx.combine(arrays, _lstm_rest)
    return jax.lax.scan(lambda state, x: (cell(x, state), state[0]), (jnp.zeros(20), jnp.zeros(20)), xs)


_lstm_arrays, _lstm_rest = _arrays(eqx.nn.LSTMCell(6, 20, key=jax.random.PRNGKey(3)))

CUSTOMERS = {
    "elementwise": (elementwise, (SQUARE,)),
    "elementwise in memory": (elementwise, (LARGE,)),
    "activations": (activations, (SQUARE,)),
    "integers": (integers, (INTEGERS, SMALL_INTEGERS)),
    "moves": (moves, (SQUARE,)),
    "moves in memory": (moves, (LARGE,)),
    "products": (products, (SQUARE,)),
    "products in memory": (products, (LARGE,)),
    "indexing": (indexing, (VECTOR, np.array(4))),
    "scattering": (scattering, (VECTOR, np.array([1, 4, 1, 9]), np.arange(4.0))),
    "indexing in memory": (large_indexing, (LARGE, ROWS, FIFTY_ROWS)),
    "sorting": (sorting, (SQUARE,)),
    "cumulative": (cumulative, (SQUARE,)),
    "cumulative in memory": (cumulative, (LARGE,)),
    "random numbers": (random_numbers, (np.array([0, 7], np.uint32),)),
    "while": (newton_root, (np.array(7.0),)),
    "nested loops": (nested_loops, (FIFTY_ROWS,)),
    "branches": (branches, (np.array(2), VECTOR)),
    "update in place": (running_update, (LONG,)),
    "swapped carries": (swapped_carries, (VECTOR,)),
    "swapped carries in memory": (swapped_carries, (LONG,)),
    "pendulum": (pendulum_rollout, (np.array([0.3, -0.5]), np.zeros(2), np.array([1.0, 2.0]))),
    "pendulum gradient": (pendulum_gradient, (np.array([0.3, -0.5]), np.zeros(2), np.array([1.0, 2.0]))),
    "second derivatives": (hessian, (VECTOR,)),
    "linear algebra": (linear_algebra, (POSITIVE, SQUARE, VECTOR)),
    "large linear algebra": (large_linear_algebra, (LARGE_POSITIVE, LARGE)),
    "gradient of solve": (gradient_of_solve, (POSITIVE, VECTOR)),
    "mlp": (_mlp, _mlp_arguments),
    "small mlp": (_small, _small_arguments),
    "mlp gradient": (mlp_gradient, _mlp_arguments),
    "gru": (_gru, _gru_arguments),
    "lstm": (lstm, (_lstm_arrays, FIFTY_ROWS[:, :6])),
}
