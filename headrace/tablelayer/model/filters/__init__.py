"""Filters of readers: their form on the wire, their evaluation against statistics and rows, and SQL conditions."""
