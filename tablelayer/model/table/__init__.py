"""What a table is: its schema and its history, its options, its partitions; and how they may change."""
