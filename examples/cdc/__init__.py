"""Change data capture: PostgreSQL, Debezium, primary-key tables, union reads."""
