"""Column types, their one grammar, and their values as texts and arrays."""
