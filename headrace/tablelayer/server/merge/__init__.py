"""Effects of a batch of writes on the rows: checks, merge engines, generated numbers. No I/O."""
