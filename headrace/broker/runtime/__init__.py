"""Ports to the system, and helpers that know nothing of Kafka: slices, background tasks, disk errors, log limits."""
