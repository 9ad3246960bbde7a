"""What needs Box2D is tested where Box2D is installed."""

import warnings

with warnings.catch_warnings():
    # Its deprecation warnings, turned into errors in the middle of its import, end the interpreter.
    warnings.simplefilter("ignore")
    try:
        import Box2D  # noqa: F401
    except ImportError:
        collect_ignore = ["shoal/envs/worlds/walker.py", "shoal/envs/worlds/lander.py"]

pytest_plugins = ["tests.compile_report"]
