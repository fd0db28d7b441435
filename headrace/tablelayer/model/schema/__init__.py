"""What a table's columns are: names, types, ids, defaults, keys, aggregate functions."""
