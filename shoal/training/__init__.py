"""Training: rollouts, the compiled program, the loop around it, evaluation."""
