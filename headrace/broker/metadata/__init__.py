"""The cluster's metadata: an immutable image, the pure controller, and the tree of nodes that both are stored in."""
