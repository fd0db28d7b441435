"""Whole brokers in one thread under virtual time: simulated ports, seeded faults, checkers, conformance suites."""
