"""The cache of compiled programs on disk."""

import os
from pathlib import Path

import jax


def cache_compilations() -> None:
    """Keep compiled programs in the user's cache, so that the next run of the same program starts at once."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(home / "shoal" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
