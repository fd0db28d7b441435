"""Writes: each row is applied exactly once, and its offset is returned."""
