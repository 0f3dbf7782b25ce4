"""The cache of compiled code: keys, damage, trouble with the disk, bounds and concurrent writers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from knuckle.native import cache as cache_module
from knuckle.native import fingerprint
from knuckle.native.cache import Entry, Store, compile_cached, default_folder
from knuckle.native.ffi import Program
from knuckle.native.fingerprint import program_key

ENTRY = Entry(b"\x00machine code" * 100, {"symbol": "f", "workspace_bytes": 64})
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory, monkeypatch) -> Path:
    """A folder for the user's secret."""
    state = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    return state


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "cache")


def test_what_is_put_is_got(store):
    assert store.get("a") is None
    store.put("a", ENTRY)
    assert store.get("a") == ENTRY
    assert store.get("b") is None


def only_file(store: Store) -> Path:
    (path,) = store.folder.iterdir()
    return path


@pytest.mark.parametrize("damage", ["cut", "empty", "one bit", "another format", "longer"])
def test_a_damaged_file_is_ignored_and_rewritten(store, damage):
    store.put("a", ENTRY)
    path = only_file(store)
    data = bytearray(path.read_bytes())
    changed = {
        "cut": data[:-7],
        "empty": b"",
        "one bit": data[:200] + bytes([data[200] ^ 1]) + data[201:],
        "another format": b"x" + data,
        "longer": data + b"\0",
    }[damage]
    path.write_bytes(bytes(changed))
    assert store.get("a") is None
    store.put("a", ENTRY)
    assert store.get("a") == ENTRY


def test_a_file_under_another_name_is_not_taken(store):
    store.put("a", ENTRY)
    path = only_file(store)
    path.rename(path.with_name(path.name.replace("a", "b", 1)))
    assert store.get("b") is None


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    store = Store(tmp_path / "file" / "cache")
    with pytest.warns(UserWarning, match="not kept in .*continuing without"):
        store.put("a", ENTRY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.put("b", ENTRY)
    assert store.get("a") is None


def test_a_full_disk_costs_one_warning_and_leaves_nothing_behind(store, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left"):
        store.put("a", ENTRY)
    assert list(store.folder.iterdir()) == []


def test_the_least_recently_used_go_first(tmp_path):
    store = Store(tmp_path, limit_bytes=10 * 2000)
    for k in range(10):
        store.put(f"k{k}", ENTRY)
        os.utime(tmp_path / f"k{k}.native", (k, k))
    assert store.get("k0") is not None  # used just now, so no longer the oldest
    for k in range(10, 20):
        store.put(f"k{k}", ENTRY)
    total = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert total <= store.limit_bytes
    assert store.get("k0") is not None and store.get("k19") is not None
    assert store.get("k1") is None


def test_unfinished_files_go_only_when_their_writer_must_be_gone(store):
    store.put("a", ENTRY)
    fresh, old = store.folder / "fresh.part", store.folder / "old.part"
    fresh.write_bytes(b"half")
    old.write_bytes(b"half")
    os.utime(old, (0, 0))
    Store(store.folder, limit_bytes=1).put("b", ENTRY)
    assert fresh.exists() and not old.exists()


def test_threads_may_write_and_read_one_key(store):
    def work(k: int) -> bool:
        for _ in range(50):
            store.put("a", ENTRY)
            if store.get("a") != ENTRY:
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


WRITER = """
    import sys, types
    sys.path.insert(0, {root!r})
    from pathlib import Path
    from knuckle.native.cache import Entry, Store
    store = Store(Path({folder!r}), limit_bytes=400_000)
    for turn in range(40):
        for key in range(6):
            entry = Entry(bytes([key]) * 50_000, {{"key": key}})
            store.put(f"k{{key}}", entry)
            got = store.get(f"k{{key}}")
            assert got is None or got == entry, "a reader saw a half-written file"
    print("fine")
"""


def test_processes_may_write_and_read_the_same_keys(tmp_path):
    text = textwrap.dedent(WRITER.format(root=str(ROOT), folder=str(tmp_path)))
    processes = [
        subprocess.Popen([sys.executable, "-W", "error::UserWarning", "-c", text], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in processes] == ["fine"] * 3
    assert not list(tmp_path.glob("*.part"))


def function(x):
    x = jnp.asarray(x)
    kept = jax.lax.scan(lambda c, _: (jnp.sin(c) * jax.nn.softplus(c), c), x, None, length=5)[1]
    return kept.sum() + jax.lax.cond(x[0] > 0, jnp.sum, jnp.max, x) + x.at[1].set(2.0).sum()


def test_equal_programs_have_equal_keys_and_others_do_not():
    def key(f, x, **options) -> str | None:
        return program_key(jax.make_jaxpr(f)(x), batch=None, **options)

    x = np.ones(3)
    reference = key(function, x)
    assert reference is not None and reference == key(lambda y: function(y), x)
    others = [
        key(lambda y: function(y) + 1, x),
        key(function, np.ones(4)),
        key(function, np.ones(3, np.float32)),
        key(jax.grad(function), x),
        key(lambda y: function(y) * jnp.arange(3.0), x),
        key(lambda y: function(y) * jnp.array([0.0, 1.0, 2.5]), x),
        key(lambda y: function(y) * 0.0, x),
        key(lambda y: function(y) * -0.0, x),
        program_key(jax.make_jaxpr(function)(x), batch=(True,)),
    ]
    assert len({reference, *others}) == len(others) + 1


def program_digest() -> str:
    """Of a program alone: the rest of a key would change with every edit of the source while tests run."""
    return fingerprint._Text().of(jax.make_jaxpr(jax.hessian(function))(np.ones(3)))


DIGEST = """
    import sys
    sys.path[:0] = [{root!r}, {here!r}]
    import jax
    jax.config.update("jax_enable_x64", True)
    from test_cache import program_digest
    print(program_digest())
"""


def test_programs_are_named_the_same_in_another_process():
    text = textwrap.dedent(DIGEST.format(root=str(ROOT), here=str(Path(__file__).parent)))
    printed = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.strip()
    assert printed == program_digest()


def test_a_program_that_calls_another_has_a_key_of_its_own():
    def around(inner):
        program = Program(jax.make_jaxpr(inner)(np.ones(3)))
        return program_key(jax.make_jaxpr(lambda x: program(x)[0] * 2)(np.ones(3)))

    assert around(function) is not None
    assert around(function) == around(function) != around(lambda x: function(x) + 1)


def test_a_program_with_a_python_callback_has_no_key():
    def calls_python(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), np.float64), x)

    assert program_key(jax.make_jaxpr(calls_python)(np.ones(3))) is None


def test_a_random_key_among_the_constants_has_no_content():
    key = jax.random.key(0)
    assert program_key(jax.make_jaxpr(lambda x: x + jax.random.uniform(key, (3,), x.dtype))(np.ones(3))) is None


def test_compiled_code_is_read_back_and_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("KNUCKLE_CACHE", str(tmp_path))
    x = np.array([0.3, -0.2, 0.9])
    jaxpr = jax.make_jaxpr(function)(x)
    first = compile_cached(jaxpr)
    assert len(list(tmp_path.iterdir())) == 1

    def never(*_, **__):
        raise AssertionError("compiled again")

    monkeypatch.setattr(cache_module, "compile_jaxpr", never)
    assert compile_cached(jaxpr) == first
    np.testing.assert_allclose(Program(jaxpr)(x)[0], function(x), rtol=1e-13)  # roundings


def test_the_environment_chooses_the_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("KNUCKLE_CACHE", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.setenv("KNUCKLE_CACHE", "")
    assert default_folder() is None
    monkeypatch.delenv("KNUCKLE_CACHE")
    folder = default_folder()
    assert folder is not None and folder.name == "knuckle"
