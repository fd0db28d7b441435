"""The state of a primary-key table's bucket: stored rows, copies of them elsewhere, and which to go on with."""
