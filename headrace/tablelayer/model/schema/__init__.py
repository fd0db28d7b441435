"""A table's columns: names, types, ids, defaults, keys, aggregate functions."""
