"""Simulated ports and conformance suites, shipped so that others can use them."""
