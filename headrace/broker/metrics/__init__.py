"""What can be asked about a running broker, and the HTTP door at which Prometheus asks it."""
