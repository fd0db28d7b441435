"""Backups of running brokers, and their restoration."""
