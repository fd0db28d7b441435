"""Benchmarks: Headrace beside Apache Kafka with the same client, machine and run, and the speed of tables."""
