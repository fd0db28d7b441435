"""A table as Kafka's clients see it: rows as records and back, and the schemas that they are written with."""
