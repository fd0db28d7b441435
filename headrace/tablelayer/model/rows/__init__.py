"""Rows and keys as bytes."""
