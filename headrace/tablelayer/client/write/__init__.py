"""Rows in, acknowledged offsets out: each row applied exactly once."""
