"""How much users, clients and addresses may have of the broker: limits, what was used of them, where they are kept.

Pure but for the store: no clocks, no sockets. `broker/api/throttling.py` measures requests and delays connections.
"""
