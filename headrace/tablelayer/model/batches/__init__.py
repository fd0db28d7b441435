"""Arrow batches as they are logged and sent, their checks, and statistics of their values."""
