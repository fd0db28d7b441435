"""Conversion of rows to JSON and back, exact to the last digit, and Debezium's envelopes."""
