"""Coordination stores: the embedded one and ZooKeeper."""
