"""The search among packed contacts finds what the search among all finds, by the same iterates."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle.contact import Impulse, search_packed
from knuckle.contact.progress import ROUGH
from tests.contact.test_coupling import crawler, planar

NEVER = 10**6  # contacts


def roll(model: kn.Model, contact: Impulse, height: float, steps: int = 60):
    q = jnp.asarray(model.reference).at[1 if model.nq < 10 else 2].add(height)
    qd = jnp.asarray(np.random.default_rng(3).normal(size=model.nv))
    return kn.native.jit(lambda q, qd: kn.rollout(model, kn.State(q, qd), dt=0.004, steps=steps, contact=contact))(
        q, qd
    )


def entangled(tmp_path) -> kn.Model:
    """Links that touch each other too: Newton's step is a matrix over the joints."""
    return crawler(tmp_path, with_each_other=True)


@pytest.mark.parametrize(
    ("make", "contact", "left_out"),
    [
        (crawler, Impulse(), "some"),
        (crawler, Impulse(pyramid=True), "some"),
        (planar, Impulse(), "some"),
        (crawler, Impulse(), "all"),
        (crawler, Impulse(most_contacts=9), "some"),
        (entangled, Impulse(self_collision=None), "some"),
        (entangled, Impulse(self_collision=None), "all"),
    ],
)
def test_packed_contacts_have_the_iterates_of_all(make, contact, left_out, tmp_path, monkeypatch):
    """`all`: every contact is left out at first, so that the second search with all of them is what is tested."""
    model, found = make(tmp_path), []
    for fewest in (1, NEVER):
        monkeypatch.setattr(search_packed, "FEWEST", fewest)
        if left_out == "all":
            monkeypatch.setattr(search_packed, "LEAST_SPEED", -1e9)
            monkeypatch.setattr(search_packed, "SAFETY", 0.0)
        found.append(roll(model, contact, -0.25))
    packed, whole = found
    assert packed.contact is not None and whole.contact is not None
    assert bool(packed.contact.converged.all()) and float(whole.contact.impulse[:, :, 0].max()) > 0
    np.testing.assert_allclose(packed.qd, whole.qd, atol=1e-6)  # 60 steps, each solved to 1e-8 m/s
    if left_out == "some":  # a search that is done again counts twice
        # of a residual near ROUGH rounding decides whether a last step is taken: Newton's step loses 5 of 16 digits
        residual = np.maximum(packed.contact.residual, whole.contact.residual)
        decided = residual < 0.1 * ROUGH * contact.tolerance
        assert np.sum(decided[:25]) >= 20
        counts = [np.asarray(run.contact.iterations)[decided] for run in (packed, whole)]
        first = np.sum(decided[:25])
        # later the robot comes to rest, where rounding decides which way a pyramid's search goes
        np.testing.assert_array_equal(counts[0][:first], counts[1][:first])
        assert np.mean(counts[0] == counts[1]) > 0.8


def test_a_state_that_is_not_finite_is_not_solved(tmp_path, monkeypatch):
    monkeypatch.setattr(search_packed, "FEWEST", 1)
    model = crawler(tmp_path)
    state = kn.State(jnp.asarray(model.reference), jnp.full(model.nv, jnp.nan))
    with pytest.raises(ArithmeticError, match="not finite"):
        kn.step(model, state, dt=0.004, contact=Impulse(), check=True)
    after = jax.jit(lambda s: kn.rollout(model, s, dt=0.004, steps=1, contact=Impulse()))(state)
    assert after.contact is not None and not bool(after.contact.converged[0])
