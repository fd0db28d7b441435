"""Who a client is, and how it knows whom it talks to: Kafka's client properties, SASL and TLS."""
