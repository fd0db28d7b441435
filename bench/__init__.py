"""Benchmarks: Headrace beside Apache Kafka, same client, same machine, one run, and what tables do."""
