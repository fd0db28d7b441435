"""Rows and keys as bytes, and the bucket that a row belongs to."""
