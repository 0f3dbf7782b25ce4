"""All tests run in float64, with implicit promotions of type and rank turned into errors.

XLA compiles without its costly optimisations, which takes half the time, and by its older emitter of loops, which takes
a third of that: most programs here run once. Processes that tests start compile as a user's do.
"""

import os

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)

_given_flags = os.environ.get("XLA_FLAGS")
os.environ["XLA_FLAGS"] = f"{_given_flags or ''} --xla_cpu_use_fusion_emitters=false"
jax.local_devices()  # reads the flags, once
if _given_flags is None:
    del os.environ["XLA_FLAGS"]
else:
    os.environ["XLA_FLAGS"] = _given_flags
