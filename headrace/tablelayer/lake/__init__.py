"""The tiering job, the lake adapters, the union read."""
