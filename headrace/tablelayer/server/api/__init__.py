"""From a message of the table extension to the catalog, the buckets or the lake, and back."""
