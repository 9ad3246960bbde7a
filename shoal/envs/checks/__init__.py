"""What `shoal check` looks at: an environment's spaces, numbers, resets, ends, pictures and speed."""
