"""Rows to JSON and back, exact to the last digit; Debezium's envelopes."""
