"""Suffixes of a table's name that select another view of the same table."""

LAKE_SUFFIX = "$lake"
METADATA_PREFIX = "$lake$"
CHANGELOG_SUFFIX = "$changelog"
