"""Partitioned tables: writes to the whole table, and automatic partitions."""
