"""What `shoal check` looks at: an environment's spaces, numbers, resets, ends, randomness, pictures, speed."""
