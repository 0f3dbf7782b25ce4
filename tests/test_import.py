"""Importing the package changes nothing global, touches no device, and is quick."""

from __future__ import annotations

import json
import subprocess
import sys

SECONDS_AT_MOST = 2.0
HEAVY = ("mujoco", "yourdfpy", "matplotlib", "llvmlite", "typer", "trimesh", "scipy.spatial", "torch")

WATCH = """
import json, logging, sys, warnings
import numpy, jax, equinox
from jax._src import xla_bridge

def world():
    return {
        "jax config": {k: repr(v) for k, v in jax.config.values.items()},
        "print options": {k: repr(v) for k, v in numpy.get_printoptions().items()},
        "floating-point errors": numpy.geterr(),
        "warning filters": repr(warnings.filters),
        "log handlers": [repr(h) for h in logging.getLogger().handlers],
        "log level": logging.getLogger().level,
        "excepthook": repr(sys.excepthook),
        "float64": str(jax.dtypes.canonicalize_dtype(float)),
    }

before = world()
import knuckle
print(json.dumps({
    "changed": [key for key, value in world().items() if value != before[key]],
    "backends": list(xla_bridge._backends),
    "modules": sorted(sys.modules),
}))
"""


def in_fresh_process(script: str) -> str:
    return subprocess.check_output([sys.executable, "-c", script], text=True)


def test_nothing_global_changes_and_no_device_is_touched():
    seen = json.loads(in_fresh_process(WATCH))
    assert seen["changed"] == []
    assert seen["backends"] == []
    assert [name for name in HEAVY if name in seen["modules"]] == []


def test_what_is_watched_would_be_seen():
    """The watch is worth something only if it notices; each line here is one thing it must notice."""
    meddling = [
        "jax.config.update('jax_enable_x64', True)",
        "numpy.set_printoptions(precision=3)",
        "numpy.seterr(all='raise')",
        "warnings.simplefilter('ignore')",
        "logging.basicConfig()",
    ]
    script = WATCH.replace("import knuckle", "; ".join([*meddling, "jax.numpy.zeros(3)"]))
    seen = json.loads(in_fresh_process(script))
    wanted = {"jax config", "print options", "floating-point errors", "warning filters", "log handlers", "float64"}
    assert set(seen["changed"]) == wanted
    assert seen["backends"] != []


def test_importing_is_quick():
    """Processor time of a fresh process, best of three, so that a busy machine does not decide.

    What is ours is what comes on top of jax and equinox, which any user of them pays.
    """
    script = "import time; {}; print(time.process_time())"
    peers, ours = (
        min(float(in_fresh_process(script.format(line))) for _ in range(3))
        for line in ("import jax, equinox", "import knuckle")
    )
    assert ours - peers < 0.5, f"import knuckle takes {ours:.2f} s, jax and equinox alone {peers:.2f} s"
    assert ours < SECONDS_AT_MOST or peers > 0.75 * SECONDS_AT_MOST, f"import knuckle takes {ours:.2f} s"


def test_what_is_imported_later_is_there_by_name():
    import knuckle as kn

    assert [name for name in kn.__all__ if not hasattr(kn, name)] == []
    assert (kn.fit, kn.Fit, kn.Recording, kn.Prior) == (kn.sysid.fit, kn.sysid.Fit, kn.sysid.Recording, kn.sysid.Prior)
