"""Conversion of rows to Avro's binary encoding and back."""
