"""Answers for readers: lookups, scans of the log and of the state, with fewer rows and columns."""
