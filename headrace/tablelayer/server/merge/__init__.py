"""What a batch of writes does to the rows: checks, merge engines, generated numbers. No I/O."""
