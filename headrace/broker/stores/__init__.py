"""Coordination stores: the embedded one, alone or behind a coordinator, and ZooKeeper."""
