"""The cache executes what it reads: what another user could have written is not taken, and stops nothing."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest

from knuckle.native import cache as cache_module
from knuckle.native import private_folder as folder_module
from knuckle.native import secret as secret_module
from knuckle.native.cache import Entry, Store, compile_cached
from knuckle.native.ffi import Program
from knuckle.native.private_folder import UnsafeFile, private_folder
from knuckle.native.secret import user_secret

ENTRY = Entry(b"\x00machine code" * 100, {"symbol": "f"})
ROOT = Path(__file__).parents[2]
STRANGER = 65534
as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
posix = pytest.mark.skipif(os.name != "posix", reason="owners and permissions of POSIX")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "knuckle"


@pytest.fixture
def store(tmp_path) -> Store:
    kept = Store(tmp_path / "cache")
    kept.put("a", ENTRY)
    assert kept.get("a") == ENTRY
    return Store(kept.folder)


def only_file(store: Store) -> Path:
    (path,) = store.folder.iterdir()
    return path


def assert_ignored_with_one_warning(store: Store, match: str) -> None:
    with pytest.warns(UserWarning, match=match) as caught:
        assert store.get("a") is None
        store.put("b", ENTRY)
        assert store.get("b") is None
    assert len(caught) == 1


def old_format(entry: Entry, key: str, magic: bytes) -> bytes:
    """An entry with a checksum that anybody can compute."""
    header = json.dumps({"key": key, "info": entry.info}).encode()
    payload = len(header).to_bytes(8, "little") + header + entry.object_code
    return magic + hashlib.sha256(payload).digest() + payload


@pytest.mark.parametrize("magic", [b"knuckle native 1\n", cache_module.MAGIC])
def test_a_planted_file_with_a_plain_checksum_is_not_taken(store, magic):
    planted = old_format(ENTRY, "planted", magic)
    (store.folder / "planted.native").write_bytes(planted)
    assert store.get("planted") is None


def test_an_entry_under_another_users_secret_is_not_taken(store, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
    assert Store(store.folder).get("a") is None  # there is no secret yet
    user_secret(create=True)
    assert Store(store.folder).get("a") is None


@posix
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
def test_a_folder_that_others_can_write_is_ignored_with_one_warning(store, mode):
    store.folder.chmod(mode)
    assert_ignored_with_one_warning(store, "lets other users write.*continuing without")


@posix
@as_root
def test_a_folder_of_another_user_is_ignored_even_by_root(store):
    os.chown(store.folder, STRANGER, STRANGER)
    assert_ignored_with_one_warning(store, f"belongs to user {STRANGER}")
    assert [path.name for path in store.folder.iterdir()] == ["a.native"]


@posix
@as_root
def test_root_makes_no_folder_in_another_users_home(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, STRANGER, STRANGER)
    assert_ignored_with_one_warning(Store(home / ".cache" / "knuckle"), f"belongs to user {STRANGER}")
    assert list(home.iterdir()) == []


@posix
@as_root
def test_a_file_of_another_user_is_not_taken(store):
    os.chown(only_file(store), STRANGER, STRANGER)
    assert store.get("a") is None


@posix
@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_not_taken(store, mode):
    only_file(store).chmod(mode)
    assert store.get("a") is None


@posix
def test_a_symbolic_link_is_no_folder_and_no_file(store, tmp_path):
    (tmp_path / "link").symlink_to(store.folder, target_is_directory=True)
    assert_ignored_with_one_warning(Store(tmp_path / "link"), "symbolic link")
    path = only_file(store)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert store.get("a") is None


@posix
def test_a_pipe_or_a_folder_in_the_place_of_a_file_does_not_hang_or_crash(store):
    path = only_file(store)
    path.unlink()
    os.mkfifo(path)
    assert store.get("a") is None
    (store.folder / "b.native").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert store.get("b") is None
        store.put("b", ENTRY)


@posix
def test_what_is_written_is_closed_to_others_whatever_the_umask(tmp_path, state):
    before = os.umask(0)
    try:
        store = Store(tmp_path / "deep" / "cache")
        store.put("a", ENTRY)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "deep", store.folder, state)}
    assert set(modes.values()) == {0o700}, modes
    assert stat.S_IMODE(only_file(store).stat().st_mode) == 0o600
    assert stat.S_IMODE((state / "cache.key").stat().st_mode) == 0o600


@posix
@pytest.mark.parametrize("damage", ["readable", "short", "link", "folder open"])
def test_a_secret_that_others_may_know_is_not_used(store, state, tmp_path, damage):
    key = state / "cache.key"
    if damage == "readable":
        key.chmod(0o644)
    elif damage == "short":
        key.write_bytes(b"")
    elif damage == "link":
        key.rename(tmp_path / "key")
        key.symlink_to(tmp_path / "key")
    else:
        state.chmod(0o777)
    assert_ignored_with_one_warning(store, "cache.key|state")


@posix
def test_the_folder_that_was_checked_is_the_folder_that_is_read(store, tmp_path):
    """Swapping the folder after the check does not change what is read or where is written."""
    planted = tmp_path / "planted"
    planted.mkdir(mode=0o700)
    (planted / "a.native").write_bytes(b"planted")
    with private_folder(store.folder) as folder:
        store.folder.rename(tmp_path / "moved")
        planted.rename(store.folder)
        assert folder.read("a.native", 10**6) != b"planted"
        folder.write("new", b"data")
    assert (tmp_path / "moved" / "new").read_bytes() == b"data" and not (store.folder / "new").exists()


def test_a_file_larger_than_the_cache_is_not_read(store):
    with private_folder(store.folder) as folder, pytest.raises(UnsafeFile, match="at most 10"):
        folder.read("a.native", 10)


def test_a_folder_that_cannot_hold_the_secret_costs_one_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert_ignored_with_one_warning(Store(tmp_path / "cache"), "not kept")


def test_without_a_home_there_is_one_warning(tmp_path, monkeypatch):
    def lost(_cls=None):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", lost)
    assert_ignored_with_one_warning(Store(tmp_path / "cache"), "home directory")


def test_a_disk_without_hard_links_still_keeps_a_secret(monkeypatch, tmp_path):
    def refused(*_, **__):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(folder_module.os, "link", refused)
    store = Store(tmp_path / "cache")
    store.put("a", ENTRY)
    assert store.get("a") == ENTRY


def test_threads_agree_on_one_secret():
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: user_secret(create=True), range(40)))) == 1


SECRET = """
    import sys, types
    for name in ("knuckle", "knuckle.native"):  # without importing JAX
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [{root!r} + "/" + name.replace(".", "/")]
    from knuckle.native.secret import user_secret
    print(user_secret(create=True).hex())
"""


def test_processes_agree_on_one_secret():
    text = textwrap.dedent(SECRET.format(root=str(ROOT)))
    processes = [subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) for _ in range(6)]
    assert {process.communicate()[0].strip() for process in processes} == {user_secret().hex()}


def well_checksummed(payload: bytes) -> bytes:
    return cache_module.MAGIC + cache_module._checksum(payload, user_secret()) + payload


def headed(header: bytes, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\1\2",
        headed(b"{", 2**63),
        headed(b"{"),
        headed(b"\xff\xfe"),
        headed(b"[]"),
        headed(b"null"),
        headed(b"{}"),
        headed(b'{"key": "a"}'),
        headed(b'{"key": "a", "info": 3}'),
        headed(b'{"key": "a", "info": "ab"}'),
        headed(b"[" * 100_000),
    ],
)
def test_a_well_checksummed_but_malformed_file_is_a_miss(store, payload):
    path = only_file(store)
    path.write_bytes(well_checksummed(payload))
    assert store.get("a") is None


GOOD = {"symbol": "knuckle_native", "workspace_bytes": 64, "lanes": 1, "operations": {}, "kinds": {}, "seconds": {}}


@pytest.mark.parametrize(
    "entry",
    [
        Entry(b"", {}),
        Entry(b"code", {"symbol": "knuckle_native"}),
        Entry(b"code", GOOD | {"more": 1}),
        Entry(b"code", GOOD | {"workspace_bytes": "64"}),
        Entry(b"code", GOOD | {"workspace_bytes": None}),
        Entry(b"not an object file", GOOD),
        Entry(b"", GOOD),
        Entry(b"\x7fELF" + b"\xff" * 500, GOOD),
        Entry(b"half", GOOD),
        Entry(b"another symbol", GOOD | {"symbol": "no_such_function"}),
    ],
    ids=str,
)
def test_a_malformed_program_is_compiled_again_and_replaced(tmp_path, monkeypatch, entry):
    monkeypatch.setenv("KNUCKLE_CACHE", str(tmp_path / "cache"))
    x = np.array([0.5, 2.0])
    jaxpr = jax.make_jaxpr(lambda x: x * 3.0)(x)
    whole = compile_cached(jaxpr).object_code
    replaced = {b"half": whole[: len(whole) // 2], b"another symbol": whole}.get(entry.object_code, entry.object_code)
    store = cache_module.default_store()
    assert store is not None
    key = only_file(store).stem
    store.put(key, entry._replace(object_code=replaced))
    np.testing.assert_array_equal(Program(jaxpr)(x)[0], 3.0 * x)
    kept = store.get(key)
    assert kept is not None and kept.object_code == whole


PLANT = """
    import os, sys, json, hashlib
    sys.path.insert(0, {root!r})
    os.setgid({uid}); os.setuid({uid})
    # what the entry claims to be, with code of the stranger's
    header = json.dumps({{"key": {key!r}, "info": {{}}}}).encode()
    payload = len(header).to_bytes(8, "little") + header + b"evil"
    for magic in (b"knuckle native 1\\n", b"knuckle native 2\\n"):
        with open({path!r}, "wb") as file:
            file.write(magic + hashlib.sha256(payload).digest() + payload)
"""


@posix
@as_root
def test_a_file_planted_by_another_user_in_a_shared_folder_is_not_executed(tmp_path, monkeypatch):
    shared_root = Path(tempfile.gettempdir())
    for folder in (tmp_path, *tmp_path.parents):
        if shared_root in folder.parents:
            folder.chmod(0o755)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("KNUCKLE_CACHE", str(shared))
    x = np.ones(2)
    jaxpr = jax.make_jaxpr(lambda x: x + 1.0)(x)
    key = cache_module.program_key(jaxpr, batch=None, level=cache_module.codegen_level())
    text = PLANT.format(root=str(ROOT), uid=STRANGER, key=key, path=str(shared / f"{key}.native"))
    subprocess.run([sys.executable, "-c", textwrap.dedent(text)], check=True)
    with pytest.warns(UserWarning, match="lets other users write"):
        np.testing.assert_array_equal(Program(jaxpr)(x)[0], x + 1)


def test_the_secret_does_not_lie_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("KNUCKLE_CACHE", raising=False)
    cache = cache_module.default_folder()
    state = secret_module.state_folder()
    assert cache is not None and cache != state and cache not in state.parents and state not in cache.parents
