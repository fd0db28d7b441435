"""Who may do what with tables, and which columns they may read."""
