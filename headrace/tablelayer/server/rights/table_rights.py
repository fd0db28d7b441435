"""Rights on databases and tables: Kafka's ACLs, on the topics of tables.

A table is its topic `db.t`, with all partitions. A database is everything that begins with `db.`, and is checked by
that name, so that an ACL with the prefix `db.` covers it.

| operation | of a table | of a database |
|---|---|---|
| READ | scans, lookups, counts, snapshots, the lake's place | |
| WRITE | appends, upserts, deletes, staged writes, its partitions | |
| CREATE | creating it (or CREATE on the cluster) | likewise |
| ALTER | altering it, tiering it | altering it |
| DELETE | dropping it | dropping it |
| DESCRIBE | its definition, partitions, tiering state | its description |

Without DESCRIBE, a table id is answered as an unknown one. By name the refusal is the same whether the table exists or
not. Listings leave out what the caller may not describe.

Single columns may be granted (`column_grants`): a read that names only these columns, also in filters and keys, is
answered; every other read is refused, also in the Kafka view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType, denied
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.server.catalog.catalog import no_table_with_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from headrace.broker.requests.declaration import RequestContext
    from headrace.tablelayer.model.table.definition import StoredTable
    from headrace.tablelayer.model.table.path import TablePath
    from headrace.tablelayer.server.catalog.catalog import Catalog
    from headrace.tablelayer.server.read.wanted import Wanted
    from headrace.tablelayer.server.rights.column_grants import ColumnGrants

_TOPIC = ResourceType.TOPIC
_Shown = dict[str, list[tuple[str, bool]]]


class TableRights:
    def __init__(self, catalog: Catalog, grants: ColumnGrants) -> None:
        self._catalog = catalog
        self._grants = grants

    # -- tables --------------------------------------------------------------------------------------------

    def may(self, context: RequestContext, operation: Operation, path: TablePath) -> bool:
        return context.authorizer.is_open or context.may(operation, _TOPIC, path.whole.topic)

    def require(self, context: RequestContext, operation: Operation, path: TablePath) -> None:
        """Check a right by name, before the table is looked up. Raises KafkaError(TOPIC_AUTHORIZATION_FAILED)."""
        if not self.may(context, operation, path):
            raise denied(_TOPIC)

    def require_create(self, context: RequestContext, path: TablePath) -> None:
        if not self._may_create(context, path.whole.topic):
            raise denied(_TOPIC)

    def require_dead_letters(self, context: RequestContext, config: Mapping[str, str | None]) -> None:
        """Raise KafkaError unless the caller may write to the table's dead-letter topic."""
        topic = config.get(TableOptions.kafka_dead_letter_topic.name)
        if topic is not None:
            context.require(Operation.WRITE, _TOPIC, topic.strip())

    def by_id(self, context: RequestContext, operation: Operation, table_id: UUID) -> StoredTable:
        """Return a table or partition. Raises KafkaError(TOPIC_AUTHORIZATION_FAILED) or TableError(TABLE_NOT_FOUND)."""
        definition = self._catalog.by_id(table_id)
        if not self.may(context, operation, definition.path):
            self.require_visible(context, definition.path, table_id)
            raise denied(_TOPIC)
        return definition

    def readable_by_id(self, context: RequestContext, table_id: UUID) -> StoredTable:
        """Do the same as `by_id` for READ, but also for a caller that may read some columns (see `check_columns`)."""
        definition = self._catalog.by_id(table_id)
        if not self.may(context, Operation.READ, definition.path) and not self._granted(context, definition):
            self.require_visible(context, definition.path, table_id)
            raise denied(_TOPIC)
        return definition

    def require_visible(self, context: RequestContext, path: TablePath, table_id: UUID) -> None:
        """Raise TableError(TABLE_NOT_FOUND) if the caller may not know that the table exists."""
        if not context.may(Operation.DESCRIBE, _TOPIC, path.whole.topic, audited=False):
            raise no_table_with_id(table_id)

    # -- columns -------------------------------------------------------------------------------------------

    def check_columns(
        self, context: RequestContext, definition: StoredTable, wanted: Wanted, used: Iterable[int] = ()
    ) -> None:
        """Raise KafkaError unless all columns that the read shows, filters by or uses (by id) may be read."""
        if self.may(context, Operation.READ, definition.path):
            return
        allowed = self._granted(context, definition)
        asked = {*wanted.ids, *used, *wanted.filter_ids}
        if asked <= allowed:
            return
        columns = wanted.schema.columns
        withheld = [column.name for column in columns if column.id in asked - allowed]
        shown = [column.name for column in columns if column.id in allowed]
        may = f"; {', '.join(shown)} may be read, by name" if shown else ""
        table = definition.path.whole
        raise KafkaError(
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            f"not authorized: columns {', '.join(withheld)} of {table} are withheld{may}",
        )

    def _granted(self, context: RequestContext, definition: StoredTable) -> frozenset[int]:
        authorizer = context.authorizer
        topic = self._catalog.context.metadata.topic(definition.path.whole.topic)
        if topic is None or authorizer.is_open:
            return frozenset()
        granted = self._grants.readable(context.principal, topic.topic_id)
        if granted and authorizer.denies(
            context.session, context.client_host, Operation.READ, _TOPIC, topic.name
        ):
            return frozenset()
        return granted

    # -- databases -----------------------------------------------------------------------------------------

    def may_see_database(self, context: RequestContext, name: str) -> bool:
        """Return whether the caller may see the database or one of its tables."""
        return self._sees_database(context, name, self._shown(context))

    def visible_databases(self, context: RequestContext) -> list[str]:
        """Return the databases that the caller may see."""
        shown = self._shown(context)
        return [name for name in self._catalog.databases.names() if self._sees_database(context, name, shown)]

    def visible_tables(self, context: RequestContext, database: str) -> list[str]:
        """Return visible tables, in order. The time it takes reveals nothing about tables that no ACL shows."""
        return self._tables(context, database, self._shown(context))

    def _sees_database(self, context: RequestContext, name: str, shown: _Shown) -> bool:
        is_seen = context.may(Operation.DESCRIBE, _TOPIC, f"{name}.", audited=False)
        return is_seen or bool(self._tables(context, name, shown))

    def _shown(self, context: RequestContext) -> _Shown:
        """Return the names and prefixes that ACLs show, by database; "" has those that end within a database's name."""
        shown: _Shown = {}
        for name, is_prefix in context.allowed(Operation.DESCRIBE, _TOPIC):
            database, dot, _ = name.partition(".")
            shown.setdefault(database if dot else "", []).append((name, is_prefix))
        return shown

    def _tables(self, context: RequestContext, database: str, shown: _Shown) -> list[str]:
        catalog, prefix = self._catalog, f"{database}."
        if any(is_prefix and prefix.startswith(name) for name, is_prefix in shown.get("", ())):
            found = catalog.table_topics(prefix)
        else:
            topics: set[str] = set()
            for name, is_prefix in shown.get(database, ()):
                if is_prefix:
                    topics.update(catalog.table_topics(name))
                elif catalog.is_table_topic(name):
                    topics.add(name)
            found = sorted(topics)
        if not context.authorizer.is_open:
            found = [each for each in found if context.may(Operation.DESCRIBE, _TOPIC, each, audited=False)]
        return [each.removeprefix(prefix) for each in found]

    def require_on_database(self, context: RequestContext, operation: Operation, name: str) -> None:
        """Raise KafkaError(TOPIC_AUTHORIZATION_FAILED) without the right on a database."""
        prefix = f"{name}."
        if operation is Operation.CREATE:
            allowed = self._may_create(context, prefix)
        else:
            allowed = context.may(operation, _TOPIC, prefix)
        if not allowed:
            raise denied(_TOPIC)

    def _may_create(self, context: RequestContext, name: str) -> bool:
        return context.may(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME) or context.may(
            Operation.CREATE, _TOPIC, name
        )
