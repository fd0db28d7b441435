"""Transactions: what a producer writes to several partitions and groups becomes visible together, or never."""
