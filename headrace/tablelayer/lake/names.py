"""Suffixes of a table's name that select another view of the same table."""

LAKE_SUFFIX = "$lake"
SNAPSHOTS_SUFFIX = "$lake$snapshots"
CHANGELOG_SUFFIX = "$changelog"
