"""The catalog: databases, tables and partitions, reading their definitions, and checks of topic configurations."""
