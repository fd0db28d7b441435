"""Semantic mutants: source code with one promise broken, and the tests that must fail. Run by `make mutants`."""
