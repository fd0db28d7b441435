"""The state of a primary-key table's bucket: stored rows, copies and snapshots of them, and recovery."""
