"""A partition of a table: writing, publishing, replay."""
