"""One learner each: pure functions written without the learner axis."""
