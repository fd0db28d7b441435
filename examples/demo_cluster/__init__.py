"""The same pipeline on three brokers, through everything that happens to brokers."""
