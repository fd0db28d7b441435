"""Quotas of users, clients and addresses: their limits, the measured usage, and their store.

Pure except for the store: no clocks, no sockets. `broker/api/throttling.py` measures requests and delays connections.
"""
