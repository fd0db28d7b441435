"""What can stand behind a table's name: other views of the same table."""

LAKE_SUFFIX = "$lake"
SNAPSHOTS_SUFFIX = "$lake$snapshots"
CHANGELOG_SUFFIX = "$changelog"
