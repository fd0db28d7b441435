"""Bytes to values and back: Kafka's wire messages and record batches. Pure: no asyncio, sockets, files or clocks."""
