"""Reads for clients: lookups, and scans of the log and of the state, with projections and filters."""
