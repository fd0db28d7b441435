"""Lookups and scans, and the positions of consumers."""
