"""The classic rebalance protocol: how members join, agree on a generation, get their assignments, and leave.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
      ^             |    ^                 |                 |
      +-------------+    +-----------------+-----------------+

PreparingRebalance collects JoinGroup requests (`joining`, `rebalance`). Their answers start a generation
(CompletingRebalance). The leader's SyncGroup brings the assignment, which is stored before members get it (Stable,
`syncing`). Each change of membership begins a rebalance again.

Invariants
- Every request is answered exactly once. If a member sends a request again, the earlier one is answered too.
- An assignment reaches only members of the generation it was made for. Each gets the leader's bytes for it unchanged;
  a member that the leader left out gets empty bytes.
- Members of one generation have its protocol.
- A group with members has a deadline that moves it on, so it cannot wait for a member for ever.

Sources: KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 and KIP-814 (static members), KIP-394 (member id
required), KIP-559 (protocol in the answers), KIP-389 (group size).
"""
