"""What is saved comes back bit for bit; what a file cannot hold is refused; a write is whole or not at all."""

import contextlib
import json
import resource
import stat
import subprocess
import sys
import zipfile

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import native, neural
from knuckle.hybrid import Hybrid, HybridFileError, load_hybrid, networks, save_hybrid
from knuckle.hybrid.file import difference
from tests.hybrid.examples import HYBRIDS, KEY, PENDULUM, STATE, everything, fields, in_type, mlp_of_equinox
from tests.neural.examples import CASES, blueprint, model_of, trained

START = kn.State(np.array([1.2, -0.4]), np.array([0.3, 0.5]))


@pytest.mark.parametrize("name", HYBRIDS)
def test_everything_comes_back_bit_for_bit(name, tmp_path):
    before = HYBRIDS[name]
    save_hybrid(tmp_path / "a.knuckle", **fields(before))
    after = load_hybrid(tmp_path / "a.knuckle")
    assert difference(before, after) is None
    assert after.notes == before.notes
    save_hybrid(tmp_path / "b.knuckle", **fields(after))
    assert (tmp_path / "a.knuckle").read_bytes() == (tmp_path / "b.knuckle").read_bytes()


@pytest.mark.parametrize("name", CASES)
def test_every_network_comes_back_bit_for_bit(name, tmp_path):
    before = Hybrid(model_of(name), blueprint(name, trained(CASES[name][0])))
    save_hybrid(tmp_path / "a.knuckle", **fields(before))
    assert difference(before, load_hybrid(tmp_path / "a.knuckle")) is None


BLOCKS = {
    "GRUCell": eqx.nn.GRUCell(4, 2, use_bias=False, key=KEY),
    "LSTMCell": eqx.nn.LSTMCell(4, 2, key=KEY),
    "LayerNorm": eqx.nn.LayerNorm((2, 2), use_bias=False),
    "Linear": eqx.nn.Linear("scalar", 2, use_bias=False, key=KEY),
    "MLP": eqx.nn.MLP(4, "scalar", 3, 2, use_final_bias=False, dtype=jnp.float32, key=KEY),
    "Identity": eqx.nn.Identity(),
}


@pytest.mark.parametrize("network", [*BLOCKS.values(), *map(eqx.nn.Lambda, networks.FUNCTIONS.values())])
def test_every_block_of_equinox_and_every_function_comes_back(network, tmp_path):
    assert set(BLOCKS) == set(networks.BLOCKS)
    before = Hybrid(PENDULUM, kn.Blueprint({"joint/force": kn.Augment(network, STATE)}))
    save_hybrid(tmp_path / "a.knuckle", **fields(before))
    assert difference(before, load_hybrid(tmp_path / "a.knuckle")) is None


def test_the_comparison_finds_a_single_bit():
    before, leaves = HYBRIDS["everything"], lambda hybrid: hybrid.model.inertia.mass
    mass = before.model.inertia.mass.copy()
    mass[2] = np.nextafter(mass[2], 9)
    assert difference(before, eqx.tree_at(leaves, before, mass)) == ".model.inertia.mass"
    assert difference(before, eqx.tree_at(leaves, before, jnp.asarray(mass))) == ".model.inertia.mass"
    assert difference(before, Hybrid(before.model)) == "the structure"


def test_a_loaded_model_steps_to_the_same_bits(tmp_path):
    before = HYBRIDS["pendulum"]
    save_hybrid(tmp_path / "a.knuckle", **fields(before))
    after = load_hybrid(tmp_path / "a.knuckle")
    runs = [hybrid.rollout(START, steps=20, native=True) for hybrid in (before, after)]
    plain = kn.rollout(PENDULUM, START, steps=20, dt=0.01, native=True)
    np.testing.assert_array_equal(runs[0].q, runs[1].q)
    assert np.abs(np.asarray(runs[0].q - plain.q)).max() > 1e-3  # the networks act
    one = native.jit(lambda state: after.step(state))(START)
    np.testing.assert_allclose(one.q, runs[0].q[0], rtol=1e-13)


def test_a_loaded_blueprint_trains(tmp_path):
    network = mlp_of_equinox(4, 2)
    save_hybrid(tmp_path / "a.knuckle", PENDULUM, kn.Blueprint({"joint/force": kn.Augment(network, STATE)}), dt=0.01)
    loaded = load_hybrid(tmp_path / "a.knuckle")

    def loss(blueprint):
        return jnp.sum(loaded.step(START, blueprint=blueprint).qd)

    slopes = eqx.filter(native.jit(jax.grad(loss))(loaded.blueprint), eqx.is_inexact_array)
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(slopes)) > 1e-3


def test_the_members_are_plain_arrays_and_json(tmp_path):
    save_hybrid(tmp_path / "a.knuckle", **fields(HYBRIDS["pendulum"]))
    with zipfile.ZipFile(tmp_path / "a.knuckle") as file:
        text = json.loads(file.read("manifest.json"))
        np.testing.assert_array_equal(np.load(file.open("model/inertia/mass.npy")), PENDULUM.inertia.mass)
        for name in file.namelist():
            if name.endswith(".npy"):
                np.load(file.open(name), allow_pickle=False)
    assert text["version"] == 1 and text["model"]["topology"]["link_names"] == ["upper", "lower"]


class Own(eqx.Module):
    """A network of a class that no file knows."""

    inner: eqx.nn.Linear

    def __call__(self, x):
        return jnp.sin(self.inner(x))


def own_blueprint(key=KEY, inputs=STATE) -> kn.Blueprint:
    return kn.Blueprint({"joint/force": kn.Augment(Own(eqx.nn.Linear(4, 2, key=key)), inputs)})


def test_a_network_of_an_unknown_class_is_refused_by_name(tmp_path):
    path = tmp_path / "a.knuckle"
    with pytest.raises(ValueError, match=r"blueprint/joint/force/0: .*test_file\.Own.*weights_only"):
        save_hybrid(path, PENDULUM, own_blueprint())
    strange = kn.Blueprint({"joint/force": kn.Augment(mlp_of_equinox(4, 2, activation=lambda x: x**3), STATE)})
    with pytest.raises(ValueError, match="a network with the function"):
        save_hybrid(path, PENDULUM, strange)
    assert list(tmp_path.iterdir()) == []


def test_weights_of_any_class_fill_a_given_structure(tmp_path):
    path, before = tmp_path / "a.knuckle", Hybrid(PENDULUM, own_blueprint())
    save_hybrid(path, **fields(before), weights_only=True)
    with pytest.raises(HybridFileError, match=r"a\.knuckle: blueprint/joint/force/0/network: .*like=blueprint"):
        load_hybrid(path)
    other = own_blueprint(jax.random.key(99))
    assert difference(before, load_hybrid(path, like=other)) is None
    with pytest.raises(HybridFileError, match=r"inputs: it was \('q', 'qd'\)"):
        load_hybrid(path, like=own_blueprint(inputs=("qd", "q")))
    wider = kn.Blueprint({"joint/force": kn.Augment(Own(eqx.nn.Linear(5, 2, key=KEY)), STATE)})
    with pytest.raises(HybridFileError, match=r"expected arrays of shapes \[\(2, 5\), \(2,\)\]"):
        load_hybrid(path, like=wider)
    with pytest.raises(HybridFileError, match=r"networks at joint/force, like=\.\.\. at q"):
        load_hybrid(path, like=kn.Blueprint({"q": kn.Augment(neural.Linear(2, 2), ("qd",))}))


class OwnContact(kn.contact.Impulse):
    pass


class OwnIntegrator(kn.RK4):
    pass


def linear_blueprint(weight: float = 0.0, **options) -> kn.Blueprint:
    network = eqx.tree_at(lambda n: n.weight, neural.Linear(2, 2), jnp.full((2, 2), weight))
    return kn.Blueprint({"joint/force": kn.Augment(network, ("q",), **options)})


def with_infinite_alpha() -> kn.contact.Impulse:
    """As an optimiser may leave it: a new one is refused."""
    return eqx.tree_at(lambda c: c.alpha, kn.contact.Impulse(), float("inf"))


def with_nan(model: kn.Model) -> kn.Model:
    return eqx.tree_at(lambda m: m.damping, model, np.array([0.0, np.nan]))


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("contact: a file holds no code: it can name Compliant, Impulse", {"contact": OwnContact()}),
        ("integrator: a file holds no code", {"integrator": OwnIntegrator()}),
        ("dt: expected a positive number", {"dt": 0.0}),
        ("dt: expected a positive number", {"dt": float("nan")}),
        ("notes: expected a dictionary of JSON data", {"notes": {"a": (1, 2)}}),
        ("notes: expected a dictionary of JSON data", {"notes": {"a": float("inf")}}),
        ("notes: expected a dictionary of JSON data", {"notes": {"a": print}}),
        ("model/damping: expected finite numbers", {"model": with_nan(PENDULUM)}),
        (
            "contact: expected one finite number",
            {"contact": with_infinite_alpha()},
        ),
        ("expected floating numbers of shape", {"model": eqx.tree_at(lambda m: m.damping, PENDULUM, np.zeros(3))}),
        ("weights/0: a file holds numbers of type", {"blueprint": in_type(linear_blueprint(), jnp.bfloat16)}),
        ("weights/0: expected finite numbers", {"blueprint": in_type(linear_blueprint(np.nan), np.float64)}),
        ("rows: expected rows of the quantity's 2, got 2", {"blueprint": linear_blueprint(rows=(2, 0))}),
    ],
)
def test_what_a_file_cannot_hold_is_refused(message, arguments, tmp_path):
    with pytest.raises(ValueError, match=message):
        save_hybrid(tmp_path / "a.knuckle", **{"model": PENDULUM, **arguments})
    assert list(tmp_path.iterdir()) == []


def test_values_that_are_traced_are_refused(tmp_path):
    def save(damping):
        save_hybrid(tmp_path / "a.knuckle", eqx.tree_at(lambda m: m.damping, PENDULUM, damping))
        return damping

    with pytest.raises(ValueError, match="outside jit"):
        jax.make_jaxpr(save)(PENDULUM.damping)


@contextlib.contextmanager
def full_disk():
    """No file may grow beyond 1000 bytes: writing fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_the_old_file_whole(tmp_path):
    path = tmp_path / "a.knuckle"
    save_hybrid(path, PENDULUM)
    path.chmod(0o640)
    before = path.read_bytes()
    with full_disk(), pytest.raises(OSError):
        save_hybrid(path, everything())
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
    save_hybrid(path, everything())
    assert path.read_bytes() != before and list(tmp_path.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_names_and_folders_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match=r"ends in \.knuckle"):
        save_hybrid(tmp_path / "a.zip", PENDULUM)
    with pytest.raises(FileNotFoundError, match="no folder"):
        save_hybrid(tmp_path / "none" / "a.knuckle", PENDULUM)
    with pytest.raises(FileNotFoundError):
        load_hybrid(tmp_path / "none.knuckle")
    with pytest.raises(HybridFileError, match="expected a regular file"):
        load_hybrid(tmp_path)
    with pytest.raises(HybridFileError, match="expected a regular file"):
        load_hybrid("/dev/zero")


def test_float64_of_jax_without_x64_is_an_error_that_says_what_to_do(tmp_path):
    save_hybrid(tmp_path / "jax.knuckle", **fields(HYBRIDS["in arrays of JAX"]))
    save_hybrid(tmp_path / "numpy.knuckle", **fields(HYBRIDS["everything"]))
    script = (
        "from knuckle.hybrid import load_hybrid\n"
        f"assert load_hybrid({str(tmp_path / 'numpy.knuckle')!r}).model.damping.dtype == 'float64'\n"
        f"load_hybrid({str(tmp_path / 'jax.knuckle')!r})\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "HybridFileError" in run.stderr and "jax_enable_x64" in run.stderr
