"""The same pipeline on three brokers, through all faults of brokers."""
