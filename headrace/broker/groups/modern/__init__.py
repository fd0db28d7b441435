"""Groups of the consumer protocol (KIP-848): members send one kind of heartbeat, the broker assigns."""
