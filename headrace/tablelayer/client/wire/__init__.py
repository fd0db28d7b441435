"""Connections to the brokers: frames, routing, deadlines and retries."""
