"""Tiering job, lake adapters and union read."""
