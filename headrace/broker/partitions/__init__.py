"""One partition of this broker, its hooks, and the data directory that holds its files."""
