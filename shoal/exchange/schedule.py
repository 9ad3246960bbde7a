"""When learners exchange, and the exchange that does nothing."""

from shoal.types import Exchange


def none() -> Exchange:
    """Learners that never meet."""
    return Exchange(init=lambda cohort: (), apply=lambda key, memory, cohort: (memory, cohort, {}))
