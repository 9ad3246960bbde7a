"""Learners around learners: curiosity, augmentation, teams."""
