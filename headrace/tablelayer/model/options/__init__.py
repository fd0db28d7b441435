"""Options of tables: declarations, types of values, and all declared options."""
