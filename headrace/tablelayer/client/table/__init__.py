"""One table, partitioned or not: write, look up, scan, write in two steps."""
