"""Options of tables: how one is declared, the kinds of values, and all there are."""
