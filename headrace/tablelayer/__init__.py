"""The table extension and everything that a table user touches."""
