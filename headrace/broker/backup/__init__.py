"""Backups of a running broker, and their restoration."""
