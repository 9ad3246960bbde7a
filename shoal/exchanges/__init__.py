"""Exchanges: how learners learn together, as pure functions along the learner axis."""
