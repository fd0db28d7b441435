"""Files outside the data directory: in another directory, or in an object store behind a URL."""
