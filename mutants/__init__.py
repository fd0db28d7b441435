"""Semantic mutants: the source with one promise broken, and the tests that must notice. `make mutants` runs them."""
