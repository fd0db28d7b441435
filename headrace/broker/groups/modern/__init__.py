"""The consumer protocol (KIP-848): the broker assigns partitions, and members report progress by their heartbeats.

`heartbeat` and `classic_members` handle requests, `assigning` and `assignors` compute targets, `reconcile` moves one
member towards its target, `changes` stores changes and lets them take effect, `conversion` changes a group's protocol.

Invariants
- A partition has one owner at a time (`reconcile`).
- All members have the same target: it is stored with its epoch before any member is told.
- A static member that left for a moment (epoch -2) keeps its partitions until its session ends. Its successor takes
  them over without a new target.

Sources: KIP-848, KIP-1082 (member ids of clients).
"""
