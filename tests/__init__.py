"""The tests: a package, because Pgx installs another one by this name."""
