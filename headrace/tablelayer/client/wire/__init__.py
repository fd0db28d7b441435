"""Connections to the brokers: frames, routing, deadlines, and what may be tried again."""
