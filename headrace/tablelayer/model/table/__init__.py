"""What a table is: its schemas and options, its partitions, the bucket of a row; and how a table may change."""
