"""Damaged and hostile files: one clear error that names file and place, or the same model; nothing else."""

import copy
import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import knuckle as kn
from knuckle import neural
from knuckle.hybrid import Hybrid, HybridFileError, load_hybrid, save_hybrid
from knuckle.hybrid.container import MANIFEST, npy_bytes, npy_header
from knuckle.hybrid.file import UNFORESEEN, difference
from tests.hybrid.examples import KEY, PENDULUM, STATE, everything, fields, mlp_of_equinox

SMALL = Hybrid(
    PENDULUM,
    kn.Blueprint(
        {
            "joint/force": kn.Augment(neural.MLP((4, 3, 2), key=KEY), STATE, input_scale=jnp.full(4, 2.0), rows=(0, 1)),
            "qd": kn.Augment(mlp_of_equinox(3, 1), ("q", 0.5, kn.previous("joint/force")), share="rows"),
        }
    ),
    kn.contact.Impulse(restitution=0.5, friction=jnp.array([0.5, 0.7])),
    kn.Implicit(),
    0.01,
    {"a": [1, "b"]},
)
RULES = kn.contact.PerPair(skull=kn.contact.Rule("skull|world", kn.contact.Compliant()), rest=kn.contact.Impulse())
HYBRIDS = {"small": SMALL, "everything": Hybrid(everything(), contact=RULES, dt=0.1)}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    for name, hybrid in HYBRIDS.items():
        save_hybrid(folder / f"{name}.knuckle", **fields(hybrid))
    return {name: (folder / f"{name}.knuckle").read_bytes() for name in HYBRIDS}


def loaded(data: bytes, folder) -> Hybrid | None:
    """The model of a file, or None where it is refused as it should be."""
    path = folder / "a.knuckle"
    path.write_bytes(data)
    try:
        return load_hybrid(path)
    except HybridFileError as error:
        assert str(error).startswith(f"{path}: {error.place}: ") and error.place
        assert str(error).isprintable() and len(str(error)) < 2000 and UNFORESEEN not in str(error)
        return None


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in members.items():
            file.writestr(zipfile.ZipInfo(name), content, compression)
    return buffer.getvalue()


def edited(data: bytes, change) -> bytes:
    """The file with its manifest changed and everything else consistent."""
    members = members_of(data)
    manifest = json.loads(members[MANIFEST])
    change(manifest)
    return zipped({**members, MANIFEST: json.dumps(manifest).encode()})


def with_array(data: bytes, place: str, array: np.ndarray) -> bytes:
    """The file with one array replaced, its checksum, type and shape made to fit."""
    content = npy_bytes(array)

    def change(manifest):
        entry = at(manifest, place)
        entry.update(array=array.dtype.str, shape=list(array.shape), sha256=hashlib.sha256(content).hexdigest())

    members = members_of(edited(data, change))
    return zipped({**members, f"{place}.npy": content})


def at(node, place: str):
    """The entry of a manifest at the place of an array."""
    for tap in ("joint/force", "qd"):
        place = place.replace(f"blueprint/{tap}/", f"blueprint/{tap.replace('/', '|')}/")
    for part in place.split("/"):
        node = node[int(part)] if isinstance(node, list) else node[part.replace("|", "/")]
        node = node.get("fields", node) if isinstance(node, dict) and "class" in node else node
    return node


# Damage


def flipped(data: bytes, rng: np.random.Generator) -> bytes:
    broken = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        broken[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
    return bytes(broken)


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    start, stop = sorted(int(i) for i in rng.integers(len(data), size=2))
    return [data[:start], data[start:], data[:start] + data[stop:], data[:start] + data[start:stop] + data[start:]][
        rng.integers(4)
    ]


def overwritten(data: bytes, rng: np.random.Generator) -> bytes:
    start, size = int(rng.integers(len(data))), int(rng.integers(1, 600))
    filler = bytes(size) if rng.random() < 0.5 else rng.bytes(size)
    return data[:start] + filler[: len(data) - start] + data[start + size :]


def swapped(data: bytes, rng: np.random.Generator) -> bytes:
    members = members_of(data)
    a, b = rng.choice(sorted(members), 2, replace=False)
    members[a], members[b] = members[b], members[a]
    if rng.random() < 0.3:
        members.pop(str(rng.choice(sorted(members))))
    return zipped(members)


@pytest.mark.parametrize(("damage", "count"), [(flipped, 200), (cut, 100), (overwritten, 100), (swapped, 100)])
def test_damaged_files_are_refused_or_equal(damage, count, files, tmp_path):
    rng, refused = np.random.default_rng(1), 0
    for number in range(count):
        name = list(files)[number % 2]
        broken = damage(files[name], rng)
        after = loaded(broken, tmp_path)
        refused += after is None
        if after is not None:
            assert difference(HYBRIDS[name], after) is None
    assert refused > 0.7 * count  # what is not covered by a checksum: dates, attributes, equal arrays that were swapped


# Edits that keep every checksum right

HOSTILE = [
    None, True, False, 0, 1, -1, -2, 2, 7, 2**31, -(2**31), 2**40, 2**63, 2**64, 10**30, 10**400, 0.5, -0.5, 1e308,
    -1e308, 1e-320, "", "x", "world", "\ud800", "../../etc/passwd", "__import__('os')", "os.system", "numpy", "|O",
    "<f4", "<V8", [], {}, [0], [-1], [10**12], [10**6, 10**6], [[]], [None], ["a"], ["a", "a"], {"array": "|O"},
    "9" * 5000, {"class": "os.system", "fields": {}}, {"class": "RK4", "fields": {}}, [1] * 5000,
    {"class": "Polynomial", "arguments": {"inputs": 60, "outputs": 1, "degree": 60}},
    {"family": "equinox", "class": "MLP", "arguments": {"depth": 10**9}},
]  # fmt: skip


def parents(node) -> Iterator[tuple]:
    """Every place in JSON data that can be changed."""
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    for key, value in items:
        yield node, key
        yield from parents(value)


def vandalised(manifest, rng: np.random.Generator) -> None:
    places = list(parents(manifest))
    node, key = places[rng.integers(len(places))]
    kind = rng.integers(8)
    if kind < 4:
        node[key] = copy.deepcopy(HOSTILE[rng.integers(len(HOSTILE))])
    elif kind == 4:
        del node[key]
    elif kind == 5:
        other, place = places[rng.integers(len(places))]
        node[key] = copy.deepcopy(other[place])
    elif isinstance(node, dict):
        node[str(rng.choice(["class", "array", "__class__", "0"]))] = copy.deepcopy(node[key])
    elif isinstance(node[key], int | float):
        node[key] += int(rng.integers(-3, 4))
    else:
        node.append(copy.deepcopy(node[key]))


def test_edited_manifests_are_refused_or_valid(files, tmp_path):
    rng, refused = np.random.default_rng(2), 0
    for number in range(400):
        name = "everything" if number % 3 == 0 else "small"
        after = loaded(edited(files[name], lambda manifest: vandalised(manifest, rng)), tmp_path)
        refused += after is None
        if after is not None:
            assert_indices_in_range(after.model)
            if difference(HYBRIDS[name], after) is not None:  # a name, a number: as valid as the one before
                save_hybrid(tmp_path / "again.knuckle", **fields(after))
                assert difference(after, load_hybrid(tmp_path / "again.knuckle")) is None
    assert refused > 250


def assert_indices_in_range(model: kn.Model) -> None:
    links = len(model.link_names)
    assert all(-1 <= parent < link for link, parent in enumerate(model.topology.parent))
    for indices in (model.frames.link, model.geometry.link, model.equalities.a, model.equalities.b):
        assert all(-1 <= index < links for index in indices)
    assert all(0 <= dof < model.nv for dof in (*model.actuators.entry_dof, *model.topology.limited))
    assert all(0 <= index < model.nu for index in model.actuators.entry_actuator)
    assert model.damping.shape == (model.nv,) and model.rotation.shape == (links, 4)
    assert len(model.geometry.mesh) == len(model.geometry.size)


def test_edited_arrays_are_refused_or_valid(files, tmp_path):
    rng, refused = np.random.default_rng(3), 0
    for number in range(120):
        name = list(files)[number % 2]
        place = str(rng.choice([m for m in members_of(files[name]) if m != MANIFEST])).removesuffix(".npy")
        array = np.load(io.BytesIO(members_of(files[name])[f"{place}.npy"]))
        changes = [
            lambda a: np.full_like(a, np.nan) if a.dtype.kind == "f" else a - 9,
            lambda a: np.full_like(a, np.inf) if a.dtype.kind == "f" else a + 9,
            lambda a: np.concatenate([a.ravel(), a.ravel(), [1]]).astype(a.dtype),
            lambda a: a[..., None],
            lambda a: np.ones_like(a, "<i8"),
            lambda a: a.astype("<f4"),
        ]
        after = loaded(with_array(files[name], place, changes[rng.integers(6)](array)), tmp_path)
        refused += after is None
        if after is not None:
            assert_indices_in_range(after.model)
            for leaf in jax.tree.leaves((after.blueprint, after.contact, after.model.inertia)):
                assert np.all(np.isfinite(leaf))
    assert refused > 70  # single precision is right, and infinite limits are


def nested(depth: int):
    data: list = []
    for _ in range(depth):
        data = [data]
    return data


def change_at(place: str, value):
    def change(manifest):
        *path, last = place.split("/")
        node = manifest
        for part in path:
            node = node[int(part) if isinstance(node, list) else part.replace("|", "/")]
        node[int(last) if isinstance(node, list) else last] = value

    return change


NETWORK = "blueprint/joint|force/0/network"


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("version", 3, "version: the file has version 3, newer than 2"),
        ("format", "zip", "expected the format"),
        ("model/topology/parent", [1, -1], "model/topology/parent/0: expected links in depth-first order"),
        ("model/topology/parent", [-1, 1], "model/topology/parent/1: expected links in depth-first order"),
        ("model/topology/parent", [-1], "model/topology/kind: expected 1 entries"),
        ("model/topology/kind", ["revolute", "free"], "model/topology/keyframes/raised: expected 8 finite numbers"),
        ("model/topology/kind", ["revolute", "screw"], "model/topology/kind/1: expected one of"),
        ("model/topology/limited", [2], "model/topology/limited/0: expected a number from 0 to 1, got 2"),
        ("model/topology/ground_mass", -1, "model/topology/ground_mass: expected a mass"),
        ("model/topology/link_names", ["a", "a"], "a name stands twice"),
        ("model/topology/name", "\ud800", "model/topology/name: expected str"),
        ("model/frames/link", [2], "model/frames/link/0: expected a number from -1 to 1, got 2"),
        ("model/geometry/link", [-2, 0, 0, 1, 1], "model/geometry/link/0: expected a number from -1"),
        ("model/geometry/kind/0", "mesh", "model/geometry/0: a mesh needs vertices"),
        ("model/geometry/contype", [2**70] * 5, "expected int"),
        (
            "contact/class",
            "OwnContact",
            "contact: expected one of Compliant, Impulse, InteriorPoint, PerPair, got 'Own",
        ),
        ("contact/class", "PerPair", "contact: expected class and fields with rules and rest"),
        ("contact/fields/alpha", -1.0, "contact: Impulse: alpha must not be negative"),
        ("contact/fields/alpha", 10**30, "contact/alpha: expected float"),
        ("contact/fields/most_iterations", 0, "contact/most_iterations: expected a positive number"),
        ("integrator/class", "os.system", "integrator: expected one of"),
        ("dt", -0.5, "dt: expected a positive number"),
        ("dt", 10**400, "dt"),
        ("notes", [1], "notes: expected a dictionary"),
        ("notes", nested(500), "nested over 60 deep"),
        ("blueprint/joint|force/0/rows", [0, 2], "rows: expected rows of the quantity's 2, got 2"),
        ("blueprint/joint|force/0/inputs", ["q", "soul"], "there is no tap 'soul'"),
        ("blueprint/joint|force/0/inputs", ["q", "previous soul"], "there is no tap 'soul'"),
        ("blueprint/joint|force/0/inputs", ["q", "constant 7"], "expected numbered constants"),
        ("blueprint/joint|force/0/mode", "eval", "mode must be one of"),
        (f"{NETWORK}/class", "subprocess.Popen", "there is no network class 'subprocess.Popen'"),
        (f"{NETWORK}/family", "os", "family must be 'knuckle.neural' or 'equinox'"),
        (f"{NETWORK}/arguments/sizes", [10**9, 10**9], "expected sizes up to"),
        (f"{NETWORK}/arguments/sizes", [10**400], "expected sizes up to"),
        (f"{NETWORK}/arguments/sizes", [0.5, 2], "positive whole numbers"),
        (f"{NETWORK}/arguments/sizes", [4] * 5000, "expected about as many layers"),
        (f"{NETWORK}/arguments/sizes", [4, 9, 2], "expected arrays of shapes"),
        (f"{NETWORK}/arguments/activation", "eval", "activation must be one of"),
        ("blueprint/qd/0/network/arguments/activation", "eval", "no network has this configuration"),
        ("blueprint/qd/0/network/arguments/depth", 10**3, "expected about as many layers"),
    ],
)
def test_hostile_entries_are_refused_by_place(place, value, message, files, tmp_path):
    path = tmp_path / "a.knuckle"
    path.write_bytes(edited(files["small"], change_at(place, value)))
    with pytest.raises(HybridFileError) as error:
        load_hybrid(path)
    assert str(error.value).startswith(f"{path}: ") and message in str(error.value)


POLYNOMIAL = {
    "family": "knuckle.neural",
    "class": "Polynomial",
    "arguments": {"inputs": 60, "outputs": 1, "degree": 60, "cross": True, "constant": False},
}
MATRIX = {"class": "Passive", "arguments": {"coordinates": {"nq": 10**6, "nv": 10**6}, "hidden": [3]}}


@pytest.mark.parametrize("network", [POLYNOMIAL, {"family": "knuckle.neural", **MATRIX}])
def test_networks_that_would_take_for_ever_to_build_are_refused_at_once(network, files, tmp_path):
    big = with_array(files["small"], "blueprint/joint/force/0/weights/0", np.zeros(10**6))  # sizes like those claimed
    assert loaded(edited(big, change_at(NETWORK, network)), tmp_path) is None


@pytest.mark.parametrize(
    ("place", "array", "message"),
    [
        ("model/gravity", np.array([0, np.nan, 1]), "model/gravity: expected finite numbers"),
        ("model/lower", np.array([0, np.nan]), "model/lower: expected numbers, got NaN"),
        ("model/inertia/mass", np.zeros(3), r"expected floating numbers of shape (2,) (link)"),
        ("model/axis", np.zeros((2, 3)), "model/axis: a direction of length zero"),
        ("contact/friction", np.array([np.inf, 1]), "contact/friction: expected finite numbers"),
        ("blueprint/joint/force/0/input_scale", np.zeros(4), "input_scale: must not be zero"),
        ("blueprint/joint/force/0/weights/0", np.full((3, 4), np.nan), "weights/0: expected finite numbers"),
        ("blueprint/joint/force/0/weights/0", np.zeros((3, 4), int), "expected numbers like float64, got int64"),
    ],
)
def test_arrays_that_no_model_has_are_refused_by_place(place, array, message, files, tmp_path):
    path = tmp_path / "a.knuckle"
    path.write_bytes(with_array(files["small"], place, array))
    with pytest.raises(HybridFileError) as error:
        load_hybrid(path)
    assert message in str(error.value)


def test_faces_outside_the_vertices_are_refused(files, tmp_path):
    mesh = next(name for name in members_of(files["everything"]) if name.endswith("faces.npy"))
    faces = np.array([[0, 1, 4]], np.int32)
    assert loaded(with_array(files["everything"], mesh.removesuffix(".npy"), faces), tmp_path) is None
    faces[0, 2] = 3
    assert loaded(with_array(files["everything"], mesh.removesuffix(".npy"), faces), tmp_path) is not None


def test_a_pickle_in_an_array_is_not_run(files, tmp_path):
    class Bomb:
        def __reduce__(self):
            return (tmp_path / "ran").touch, ()

    buffer = io.BytesIO()
    np.save(buffer, np.array([Bomb()], object), allow_pickle=True)
    place, content = "model/gravity", buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    for dtype in ("|O", "<f8"):
        entry = {"array": dtype, "shape": [1], "of": "numpy", "sha256": digest}
        members = members_of(edited(files["small"], change_at(place, entry)))
        assert loaded(zipped({**members, f"{place}.npy": content}), tmp_path) is None
    assert not (tmp_path / "ran").exists()


def test_containers_that_are_bombs_or_ambiguous_are_refused(files, tmp_path):
    members = members_of(files["small"])
    assert loaded(zipped(members), tmp_path) is not None
    assert loaded(zipped(members, zipfile.ZIP_DEFLATED), tmp_path) is None
    zeros = npy_header("<f8", (2**20,)) + bytes(2**23)
    assert loaded(zipped({**members, "model/more.npy": zeros}, zipfile.ZIP_DEFLATED), tmp_path) is None
    assert loaded(zipped({**members, "model/more.npy": npy_bytes(np.zeros(2))}), tmp_path) is None
    assert loaded(zipped({**members, "../evil.py": b"print()"}), tmp_path) is None
    assert loaded(zipped({**members, "": b"print()"}), tmp_path) is None
    twice = members[MANIFEST].replace(b'"version": 1', b'"version": 1, "version": 1')
    assert loaded(zipped({**members, MANIFEST: twice}), tmp_path) is None
    assert loaded(zipped({**members, MANIFEST: members[MANIFEST][:-1] + b', "x": NaN}'}), tmp_path) is None
    assert loaded(zipped({**members, MANIFEST: b"[" * 100_000}), tmp_path) is None
    assert loaded(b"", tmp_path) is None and loaded(b"PK\x05\x06" + bytes(18), tmp_path) is None


def test_a_shape_that_is_claimed_takes_no_memory(files, tmp_path):
    def change(manifest):
        at(manifest, "model/gravity")["shape"] = [2**39, 2**39, 2**39]

    assert loaded(edited(files["small"], change), tmp_path) is None


def test_overlapping_members_are_refused(files, tmp_path):
    """Many names for the same bytes: small on disk, large in memory."""
    data = files["small"]
    end = data.rindex(b"PK\x05\x06")
    start = struct.unpack("<I", data[end + 16 : end + 20])[0]
    fixed, copies = data[start : start + 46], 2000  # the manifest's entry in the directory, without its name
    more = b"".join(fixed + f"{number:09d}.npy".encode() for number in range(copies))
    assert len("000000000.npy") == len(MANIFEST)
    directory = data[start:end] + more
    count = copies + len(members_of(data))
    tail = b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, count, count, len(directory), start, 0)
    path = tmp_path / "a.knuckle"
    path.write_bytes(data[:start] + directory + tail)
    with pytest.raises(HybridFileError, match="the members claim more bytes than"):
        load_hybrid(path)


def test_the_networks_of_the_small_file_are_there(files, tmp_path):
    after = loaded(files["small"], tmp_path)
    assert after is not None and difference(SMALL, after) is None
    leaves = jax.tree.leaves(eqx.filter(after.blueprint, eqx.is_array))
    assert sum(int(jnp.size(leaf)) for leaf in leaves) > 30
