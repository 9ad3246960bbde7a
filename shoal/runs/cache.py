"""The cache of compiled programs on disk."""

import os
from pathlib import Path

import jax

DEFAULT_SECONDS = 1.0
"""JAX keeps programs that took longer to compile than this, unless it is told otherwise."""


def cache_compilations() -> None:
    """Keep compiled programs in the user's cache, so that the next run of the same program starts at once.

    What the user has set, in JAX or by an environment variable such as JAX_COMPILATION_CACHE_DIR, stays.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home
        return
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(home / "shoal" / "xla"))
    if jax.config.values["jax_persistent_cache_min_compile_time_secs"] == DEFAULT_SECONDS:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
