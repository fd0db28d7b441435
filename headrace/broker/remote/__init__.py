"""The remote log (KIP-405): sealed segments in an object store, and reads from there."""
