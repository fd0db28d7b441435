"""Column types, their grammar, and their values as texts and arrays."""
