"""Wrappers, functions from a learner to a learner: curiosity, augmentation, teams, matches."""
