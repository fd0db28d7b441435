"""Administration of databases, tables and partitions, of Kafka's topics and groups, and DDL statements."""
