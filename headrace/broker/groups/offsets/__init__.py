"""Committed offsets of a group: validation, commits, deletion, expiry, and those in open transactions."""
