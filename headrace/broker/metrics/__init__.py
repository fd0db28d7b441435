"""Metrics of a running broker, and the HTTP endpoint that Prometheus reads."""
