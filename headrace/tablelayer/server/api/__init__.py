"""Handlers of the table extension's requests; they call the catalog, the buckets and the lake."""
