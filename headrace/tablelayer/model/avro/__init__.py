"""Rows to Avro's binary encoding and back."""
