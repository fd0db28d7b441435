"""Partial updates: three sources fill one wide table, each its own columns."""
