"""A table as Kafka's clients see it: rows as records and back, and the schemas of Avro values."""
