"""Transactions: a producer's writes to several partitions and groups become visible together, or never."""
