"""The buckets of tables: writing, publishing, replay."""
