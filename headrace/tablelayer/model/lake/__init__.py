"""A lake's offsets and a plain topic's lake table, as values."""
