"""One table, partitioned or not: writes, lookups, scans and staged writes."""
