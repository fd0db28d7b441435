"""Security of connections: Kafka's client properties, SASL and TLS."""
