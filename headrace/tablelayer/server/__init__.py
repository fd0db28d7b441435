"""The table extension of the broker."""
