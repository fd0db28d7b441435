"""Table definitions: schemas, options, partitions, buckets, and the changes that are possible."""
