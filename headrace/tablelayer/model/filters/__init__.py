"""Which rows a reader wants: as it travels, as a tree that knows what statistics exclude, from SQL."""
