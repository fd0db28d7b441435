"""Sockets to ordered replies."""
