"""Options with which XLA compiles in a fraction of the time, for programs that run once."""

import os

FLAGS = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
QUICK_XLA = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": FLAGS}  # for processes that tests start
