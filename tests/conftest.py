"""All tests run in float64, with implicit promotions of type and rank turned into errors.

XLA compiles without its costly optimisations, which takes half the time: most programs here run once.
"""

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_disable_most_optimizations", True)
