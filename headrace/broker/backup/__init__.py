"""Backups of a running broker, and how one is made again of them."""
