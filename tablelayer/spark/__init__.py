"""Spark jars and sessions, the data source, the lookup join."""
