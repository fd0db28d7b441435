"""Partitioned tables: what is written to the whole, and what the calendar makes and drops."""
