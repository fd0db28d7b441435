"""Arrow batches as they are logged and sent, what is checked of them, and what is known of their values."""
