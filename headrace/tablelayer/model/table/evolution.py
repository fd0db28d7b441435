"""Changes of tables: ALTER TABLE as a pure function of definitions.

`evolve` applies the changes of one statement, all or none. All changes of columns together make one new schema, with
the next id. The old schema is appended to `TableDefinition.history` and stays for ever, because batches and rows were
written under it. Column ids are never used again, not even those of dropped columns.

`check_successor` checks configurations from any source: it accepts exactly the results that `evolve` could have made
of the present table. Where changes are serialized, it works as a compare-and-set: of two ALTERs that began with the
same schema the second one fails, and can start again from the first one's result.

The columns of the primary key and of the bucket key, and their types, can never change, because they decide where a
row is; renaming the columns is possible. The number of buckets can grow where no reader looks for a row in the bucket
of its key (`check_bucket_count`). Types can only become wider, so that every stored value
has a value in the new type. NOT NULL can be removed, but not added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Generic, TypeVar, assert_never

import msgspec
from msgspec.structs import fields

from headrace.tablelayer.model.errors import TableError, TableErrorCode, invalid_table
from headrace.tablelayer.model.options import table_options
from headrace.tablelayer.model.options.option_types import parse_name_list
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.model.schema.aggregates import is_aggregate_option, parse_options
from headrace.tablelayer.model.schema.schema import MAX_COLUMNS, MAX_SCHEMA_ID, Column, Schema
from headrace.tablelayer.model.strict_json import loads
from headrace.tablelayer.model.table.definition import RETENTION_CONFIG, TableDefinition
from headrace.tablelayer.model.table.lake_shape import lake_complaint
from headrace.tablelayer.model.types.column_types import INTEGER_BITS, INTEGER_KINDS, DataType, TypeKind
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.model.types.values import normal, widened

Definition = TypeVar("Definition", bound=TableDefinition)

MAX_CHANGES: Final = 2 * MAX_COLUMNS  # in one statement: all columns replaced

FIRST: Final = ""
"""The position before all columns. None is the position after them, or no change of position."""


class AddColumn(msgspec.Struct, frozen=True):
    """Add a column. `after`: the name of the column before it, `FIRST`, or None for the last position.

    NOT NULL needs a `default` (a text for `values.normal`), which existing rows get.
    """

    name: str
    type: DataType
    nullable: bool = True
    comment: str | None = None
    default: str | None = None
    after: str | None = None
    if_not_exists: bool = False


class DropColumn(msgspec.Struct, frozen=True):
    name: str
    if_exists: bool = False


class RenameColumn(msgspec.Struct, frozen=True):
    name: str
    new_name: str


class ModifyColumn(msgspec.Struct, frozen=True):
    """Change a column. None keeps a property; `comment` '' and `drop_default` remove it.

    A new default is for rows written from now on; rows from before the column keep the default that it was added
    with.
    """

    name: str
    type: DataType | None = None
    nullable: bool | None = None
    comment: str | None = None
    default: str | None = None
    drop_default: bool = False
    after: str | None = None


class SetOptions(msgspec.Struct, frozen=True):
    options: Mapping[str, str] = msgspec.field(default_factory=dict)


class ResetOptions(msgspec.Struct, frozen=True):
    """Set options back to their defaults."""

    names: tuple[str, ...] = ()


class SetTableComment(msgspec.Struct, frozen=True):
    """Set the table's comment; None removes it."""

    comment: str | None


Change = AddColumn | DropColumn | RenameColumn | ModifyColumn | SetOptions | ResetOptions | SetTableComment
_KINDS: Final = {
    "add": AddColumn,
    "drop": DropColumn,
    "rename": RenameColumn,
    "modify": ModifyColumn,
    "set": SetOptions,
    "reset": ResetOptions,
    "comment": SetTableComment,
}
_VALUES: Final[Mapping[str, Any]] = {
    "name": str, "new_name": str, "type": DataType, "nullable": bool, "comment": str | None, "default": str,
    "after": str, "if_not_exists": bool, "if_exists": bool, "drop_default": bool, "options": dict, "names": tuple,
}  # fmt: skip
_WORDS: Final = {kind: word for word, kind in _KINDS.items()}


def changes_to_json(changes: Sequence[Change]) -> str:
    """Return compact JSON text; `changes_from_json` turns it into equal changes."""
    listed = []
    for change in changes:
        entry: dict[str, Any] = {"change": _WORDS[type(change)]}
        for each in fields(change):
            value = getattr(change, each.name)
            if value is not None:
                entry[each.name] = str(value) if isinstance(value, DataType) else value
        listed.append(entry)
    return json.dumps(listed, separators=(",", ":"), ensure_ascii=False)


def changes_from_json(text: str) -> tuple[Change, ...]:
    """Return the changes in a JSON text. Raises TableError(INVALID_TABLE) if it is not a list of changes."""
    try:
        listed = loads(text)
        if len(listed) > MAX_CHANGES:
            raise invalid_table(f"one statement has {len(listed)} changes; the limit is {MAX_CHANGES}")
        return tuple(_change_from_dict(dict(entry)) for entry in listed)
    except (KeyError, TypeError, ValueError, RecursionError, msgspec.ValidationError) as error:
        raise invalid_table(f"this is not a list of changes in JSON: {error!r}") from error


def _change_from_dict(entry: dict[str, Any]) -> Change:
    kind: type[Any] = _KINDS[entry.pop("change")]
    if entry.get("type") is not None:
        entry["type"] = parse_type(entry["type"])
    if kind is ResetOptions:
        entry["names"] = msgspec.convert(entry.get("names") or (), tuple[str, ...])
    if kind is SetTableComment:
        entry.setdefault("comment", None)
    entry = {name: value for name, value in entry.items() if value is not None or name == "comment"}
    for name, value in entry.items():
        if not isinstance(value, _VALUES[name]):
            raise TypeError(f"{name} is {value!r}")
    if kind is SetOptions:
        table_options.check_texts(entry.get("options", {}))
    change: Change = kind(**entry)
    return change


def widens(old: DataType, new: DataType) -> bool:
    """Whether a column's type may become another: it is the same, or holds every value of the old type."""
    if old == new:
        return True
    if old.is_nested or new.is_nested:
        return False
    kinds = (old.kind, new.kind)
    if old.kind in INTEGER_KINDS and new.kind in INTEGER_KINDS:
        return INTEGER_BITS[new.kind] > INTEGER_BITS[old.kind]
    if kinds == (TypeKind.DECIMAL, TypeKind.DECIMAL):
        return new.scale == old.scale and new.precision > old.precision
    if kinds in ((TypeKind.CHAR, TypeKind.CHAR), (TypeKind.BINARY, TypeKind.BINARY)):
        return new.length > old.length
    return kinds in (
        (TypeKind.FLOAT, TypeKind.DOUBLE),
        (TypeKind.CHAR, TypeKind.STRING),
        (TypeKind.BINARY, TypeKind.BYTES),
    )


def _wider_types(old: DataType) -> str:
    if old.kind in INTEGER_KINDS:
        wider = [kind.value for kind in INTEGER_BITS if INTEGER_BITS[kind] > INTEGER_BITS[old.kind]]
        return " or ".join(wider) or "nothing wider"
    return {
        TypeKind.FLOAT: "DOUBLE",
        TypeKind.DECIMAL: f"DECIMAL with more digits and scale {old.scale}",
        TypeKind.CHAR: "a longer CHAR or STRING",
        TypeKind.BINARY: "a longer BINARY or BYTES",
    }.get(old.kind, "nothing else")


def evolve(definition: Definition, changes: Sequence[Change]) -> Definition:
    """Return the definition after the changes, in their order.

    Raises TableError(INVALID_TABLE) for a change that is not possible; then nothing is changed.
    """
    work = _Work(definition)
    for change in changes:
        work.apply(change)
    return work.result()


class _Work(Generic[Definition]):
    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.columns = list(definition.schema.columns)
        self.primary_key = list(definition.schema.primary_key)
        self.bucket_key = list(definition.bucket_key)
        self.partition_keys = list(definition.partition_keys)
        self.options = dict(definition.options)
        self.comment = definition.comment
        self.bucket_count = definition.bucket_count
        self.functions: dict[str, str] = {}
        self.first_new_id = self.next_id = 1 + max(
            column.id for schema in definition.versions.schemas for column in schema.columns
        )

    def apply(self, change: Change) -> None:
        match change:
            case AddColumn():
                self.add(change)
            case DropColumn():
                self.drop(change)
            case RenameColumn():
                self.rename(change.name, change.new_name)
            case ModifyColumn():
                self.modify(change)
            case SetOptions():
                for name, value in change.options.items():
                    if name == table_options.BUCKET_COUNT:
                        self.bucket_count = table_options.parse_bucket_count(value)
                        check_bucket_count(self.definition, self.bucket_count)
                        continue
                    self.check_alterable(name)
                    if is_aggregate_option(name):
                        self.functions[name] = value
                    else:
                        self.options[name] = value
            case ResetOptions():
                for name in change.names:
                    self.check_alterable(name)
                    if is_aggregate_option(name):
                        raise invalid_table(f"option '{name}': a column keeps its function")
                    if table_options.is_table_option(name):
                        table_options.find(name)
                    self.options.pop(name, None)
            case SetTableComment():
                self.comment = change.comment
            case _:
                assert_never(change)

    def result(self) -> Definition:
        old = self.definition
        schema, history = old.schema, old.history
        for name, function in parse_options(self.functions).items():
            position = self.position(name)
            column = self.columns[position]
            if column.id < self.first_new_id and column.aggregate != function:
                raise invalid_table(
                    f"column '{name}' of table {old.path} keeps its function: rows were merged with it"
                )
            self.columns[position] = replace(column, aggregate=function)
        columns, primary_key = tuple(self.columns), tuple(self.primary_key)
        if (columns, primary_key) != (schema.columns, schema.primary_key):
            if schema.schema_id >= MAX_SCHEMA_ID:
                raise invalid_table(f"table {old.path} has had {MAX_SCHEMA_ID} schemas, which is the maximum")
            history = (*history, schema)
            schema = Schema(schema.schema_id + 1, columns, primary_key)
        options = dict(self.options)
        drop_followed_retention(old.options, options)
        new = replace(
            old,
            schema=schema,
            history=history,
            bucket_key=tuple(self.bucket_key),
            bucket_count=self.bucket_count,
            partition_keys=tuple(self.partition_keys),
            options=options,
            comment=self.comment,
        )
        check_successor(old, new)
        return new

    def position(self, name: str) -> int:
        for position, column in enumerate(self.columns):
            if column.name == name:
                return position
        names = ", ".join(column.name for column in self.columns)
        raise invalid_table(f"table {self.definition.path} has no column '{name}'; its columns are {names}")

    def has(self, name: str) -> bool:
        return any(column.name == name for column in self.columns)

    def place(self, column: Column, after: str | None) -> None:
        if after is None:
            self.columns.append(column)
        elif after == FIRST:
            self.columns.insert(0, column)
        else:
            self.columns.insert(self.position(after) + 1, column)

    def add(self, change: AddColumn) -> None:
        if self.has(change.name):
            if change.if_not_exists:
                return
            raise invalid_table(f"table {self.definition.path} already has a column '{change.name}'")
        if not change.nullable and change.default is None:
            raise invalid_table(
                f"column '{change.name}' is NOT NULL: existing rows need a value for it; give it a DEFAULT"
            )
        default = None if change.default is None else _default(change.name, change.default, change.type)
        column = Column(
            self.next_id,
            change.name,
            change.type,
            change.nullable,
            change.comment,
            default=default,
            initial=default,
        )
        self.next_id += 1
        self.place(column, change.after)

    def drop(self, change: DropColumn) -> None:
        if change.if_exists and not self.has(change.name):
            return
        position = self.position(change.name)
        user = self.user_of(change.name)
        if user is not None:
            raise invalid_table(
                f"column '{change.name}' of table {self.definition.path} {user}: it cannot be dropped"
            )
        if len(self.columns) == 1:
            raise invalid_table(f"column '{change.name}' is the only one of table {self.definition.path}")
        del self.columns[position]

    def user_of(self, name: str) -> str | None:
        """Return the reason why a column cannot be dropped; None if it can."""
        if name in self.primary_key:
            return f"is in the primary key ({', '.join(self.primary_key)})"
        if name in self.partition_keys:
            return f"is a partition column ({', '.join(self.partition_keys)})"
        if name in self.bucket_key:
            return f"is in the bucket key ({', '.join(self.bucket_key)})"
        for option, value in self.options.items():
            if name in table_options.columns_named(option, value):
                return f"is named by option '{option}'"
        return None

    def rename(self, old: str, new: str) -> None:
        position = self.position(old)
        if old == new:
            return
        if self.has(new):
            raise invalid_table(f"table {self.definition.path} already has a column '{new}'")
        self.columns[position] = replace(self.columns[position], name=new)
        self.primary_key = [new if name == old else name for name in self.primary_key]
        self.bucket_key = [new if name == old else name for name in self.bucket_key]
        self.partition_keys = [new if name == old else name for name in self.partition_keys]
        for option, value in self.options.items():
            self.options[option] = table_options.renamed_column(option, value, old, new)

    def modify(self, change: ModifyColumn) -> None:
        position = self.position(change.name)
        column = self.columns[position]
        if change.type is not None and change.type != column.type:
            column = self.widen(column, change.type)
        if change.nullable is not None and change.nullable != column.nullable:
            if not change.nullable:
                raise invalid_table(
                    f"column '{column.name}' cannot become NOT NULL: there may be rows without a value"
                )
            if column.name in self.primary_key:
                raise invalid_table(f"column '{column.name}' is in the primary key, which is never null")
            column = replace(column, nullable=True)
        if change.comment is not None:
            column = replace(column, comment=change.comment or None)
        if change.default is not None or change.drop_default:
            default = None if change.default is None else _default(column.name, change.default, column.type)
            column = replace(column, default=default)
        del self.columns[position]
        if change.after is None:
            self.columns.insert(position, column)
        elif change.after == column.name:
            raise invalid_table(f"column '{column.name}' cannot be placed after itself")
        else:
            self.place(column, change.after)

    def widen(self, column: Column, new: DataType) -> Column:
        if column.type.is_nested:
            raise invalid_table(
                f"column '{column.name}' is {column.type} and cannot become {new}: the types inside of a nested type "
                "cannot change; add a column of the new type"
            )
        if not widens(column.type, new):
            raise invalid_table(
                f"column '{column.name}' is {column.type} and cannot become {new}: "
                f"types that can hold every value: {_wider_types(column.type)}"
            )
        for what, names in (
            ("primary", self.primary_key),
            ("bucket", self.bucket_key),
            ("partition", self.partition_keys),
        ):
            if column.name in names:
                raise invalid_table(
                    f"column '{column.name}' is in the {what} key: its bytes decide where rows are, so its type "
                    "is fixed"
                )
        old = column.type
        return replace(
            column,
            type=new,
            default=None if column.default is None else widened(column.default, old, new),
            initial=None if column.initial is None else widened(column.initial, old, new),
        )

    def check_alterable(self, name: str) -> None:
        path = self.definition.path
        if name == table_options.BUCKET_COUNT:
            raise invalid_table(
                f"'{name}' of table {path} cannot be reset: set the number of buckets that it should have"
            )
        if name == table_options.BUCKET_KEY:
            raise invalid_table(f"the bucket key of table {path} is fixed: it decides where rows are")


def check_bucket_count(definition: TableDefinition, count: int) -> None:
    """Raise TableError(INVALID_TABLE) unless the table may have `count` buckets from now on.

    A log table may get more. Rows stay where they are, and new rows use all buckets; a partitioned table's partitions
    keep theirs, and new partitions have the new number. A key's bucket must not change within a part: state and order
    of its rows are in one bucket.
    """
    old, path = definition.bucket_count, definition.path
    if count == old:
        return
    if definition.is_primary_key_table:
        why = "is fixed: it decides where the row of a key is"
    elif count < old:
        why = f"is {old} and cannot become {count}: the rows of a bucket stay in it"
    elif definition.bucket_key and not definition.is_partitioned:
        why = (
            f"is fixed: rows with the same bucket key ({', '.join(definition.bucket_key)}) stay in one bucket"
        )
    elif count > table_options.MAX_BUCKET_COUNT:
        raise invalid_table(
            f"table {path}: the number of buckets would be {count}; it must be between 1 and "
            f"{table_options.MAX_BUCKET_COUNT}"
        )
    else:
        return
    raise invalid_table(
        f"the number of buckets of table {path} {why}. Copy the table: CREATE TABLE copy WITH"
        f" ('{table_options.BUCKET_COUNT}' = '{count}') LIKE {path.table}; INSERT INTO copy SELECT * FROM {path.table}"
    )


def check_successor(before: TableDefinition, after: TableDefinition) -> None:
    """Raise TableError unless one ALTER leads from one definition to the other.

    SCHEMA_CHANGED if `after` was made from another schema than the table has now, else INVALID_TABLE.
    """
    path = before.path
    renames: dict[str, str] = {}
    if after.schema != before.schema or after.history != before.history:
        if after.history != (*before.history, before.schema):
            raise TableError(
                TableErrorCode.SCHEMA_CHANGED,
                f"table {path} now has schema {before.schema.schema_id}; the change was made for another one",
            )
        _check_columns(before, after.schema)
        new_names = {column.id: column.name for column in after.schema.columns}
        renames = {
            column.name: new_names[column.id] for column in before.schema.columns if column.id in new_names
        }
    if after.partition_keys != tuple(renames.get(name, name) for name in before.partition_keys):
        raise invalid_table(f"the partition columns of table {path} are fixed: they decide where rows are")
    if after.bucket_key != tuple(renames.get(name, name) for name in before.bucket_key):
        raise invalid_table(f"the bucket key of table {path} is fixed: it decides where rows are")
    for name in sorted({*before.options, *after.options}):
        _check_option(before, after, name, renames)
    wrong = lake_complaint(after)
    if wrong is not None and lake_complaint(before) is None:
        raise invalid_table(wrong)


def _check_columns(before: TableDefinition, schema: Schema) -> None:
    old = {column.id: column for column in before.schema.columns}
    used = {column.id for each in before.versions.schemas for column in each.columns}
    keys = [column.id for column in before.schema.key_columns]
    if schema.schema_id != before.schema.schema_id + 1:
        raise invalid_table(f"the schema after {before.schema.schema_id} has id {schema.schema_id}")
    if [column.id for column in schema.key_columns] != keys:
        raise invalid_table(f"the primary key of table {before.path} is fixed")
    placing = (*before.bucket_key, *before.partition_keys)
    placed = {*keys, *(before.schema.column(name).id for name in placing)}
    missing = placed - {column.id for column in schema.columns}
    if missing:
        raise invalid_table(
            f"table {before.path}: columns of the primary key or bucket key, and partition columns, cannot be dropped"
        )
    for column in schema.columns:
        known = old.get(column.id)
        if known is None:
            if column.id in used:
                raise invalid_table(f"column '{column.name}': id {column.id} belonged to another column")
            if not column.nullable and column.initial is None:
                raise invalid_table(f"column '{column.name}' is new and NOT NULL: it needs a default")
        elif known.type != column.type and (column.id in placed or not widens(known.type, column.type)):
            raise invalid_table(f"column '{column.name}' is {known.type} and cannot become {column.type}")
        elif known.aggregate != column.aggregate:
            raise invalid_table(f"column '{column.name}' keeps its function: rows were merged with it")
        elif known.nullable and not column.nullable:
            raise invalid_table(f"column '{column.name}' cannot become NOT NULL")


def _check_option(
    before: TableDefinition, after: TableDefinition, name: str, renames: Mapping[str, str]
) -> None:
    old, new = before.options.get(name), after.options.get(name)
    if not table_options.is_table_option(name) or old == new:
        return
    free = before.bucket_count == 1 or not before.bucket_key
    if name == TableOptions.datalake_format.name and old is None and free:
        return  # with one bucket all bucket functions agree, and without a bucket key there is none
    if old is not None and table_options.names_columns(name):
        renamed = [renames.get(each, each) for each in parse_name_list(old)]
        if new == ",".join(renamed):
            return
    if not table_options.find(name).alterable:
        placed = name == TableOptions.datalake_format.name
        why = (
            ": the rows' buckets were not computed by the lake's function. Copy the rows into a new table"
            if placed
            else ""
        )
        alterable = ", ".join(each.name for each in table_options.DECLARED.values() if each.alterable)
        raise invalid_table(
            f"option '{name}' of table {before.path} is fixed at creation{why}; "
            f"the options that can be altered are {alterable}"
        )


def drop_followed_retention(old: Mapping[str, str], new: dict[str, str]) -> None:
    """Remove a retention.ms that followed the old table.log.ttl if the latter has changed."""
    ttl = TableOptions.log_ttl_ms.name
    if new.get(ttl) != old.get(ttl) and new.get(RETENTION_CONFIG) == old.get(RETENTION_CONFIG):
        new.pop(RETENTION_CONFIG, None)


def _default(name: str, text: str, data_type: DataType) -> str:
    try:
        return normal(text, data_type)
    except ValueError as error:
        raise invalid_table(f"invalid default of column '{name}': {error}") from None
