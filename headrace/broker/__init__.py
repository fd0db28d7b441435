"""A complete Kafka broker that knows nothing of tables."""
