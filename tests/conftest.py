"""Tests see two CPU devices, strict shapes and a compilation cache."""

import os
from pathlib import Path

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_rank_promotion", "raise")
cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shoal" / "tests"
jax.config.update("jax_compilation_cache_dir", str(cache))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
