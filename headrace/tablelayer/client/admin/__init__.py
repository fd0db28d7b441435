"""Databases, tables, partitions; Kafka's topics and groups; statements that define them."""
