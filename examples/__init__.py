"""Examples that run: `make demo`, `make demo-wide`, `make demo-cdc`."""
