"""Rights on databases, tables and columns."""
