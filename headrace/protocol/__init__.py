"""Bytes to values and back: Kafka's wire messages and record batches. No asyncio, sockets, files, clocks."""
