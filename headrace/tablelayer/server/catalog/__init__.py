"""Which databases, tables and partitions there are, how their definitions are read, and which ones are accepted."""
