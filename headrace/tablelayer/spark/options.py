"""Options of the `headrace` data source, validated.

A malformed option is an error, and so is an unknown one that is close to one of our names. Others are Spark's own
(`queryName`, `path`, `option.table`, `provider`) or another source's.

Names are compared without case, dots and underscores, because Spark writes all of them in lower case:
`bootstrap.servers`, `startingOffsets` and `starting.offsets` all work. `kafka.security.protocol` and similar are
Kafka's client properties, as in Spark's Kafka source; without them, those of the environment. Errors never show the
value of a client property.
"""

from __future__ import annotations

import datetime
import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from headrace.tablelayer.client.security.settings import ConnectionSettings, environment_server
from headrace.tablelayer.model.filters.conditions import Predicate
from headrace.tablelayer.spark.positions import Offsets

PartitionOffsets = Mapping[str, Offsets]
"""Offsets by partition and bucket."""

Mode = Literal["current", "changelog", "upsert"]
WriteMode = Literal["append", "upsert", "delete", "partial"]
Delivery = Literal["exactly-once", "at-least-once"]
AvailableNow = Literal["false", "true", "capped"]
ScanMode = Literal["full", "log"]
"""Whether a read of a whole table takes from the lake what has left the log."""
View = Literal["", "lake"]
"""Part of a table to read: the table itself, its lake alone, or the lake's snapshots."""
Place = str | int | Offsets | PartitionOffsets
"""Place in every bucket: "full", "earliest", "latest", a time in ms, or offsets by bucket or by partition and bucket.
"""

_READ = (
    "bootstrap.servers", "table", "columns", "mode", "where", "limit", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "maxOffsetsPerTrigger", "availableNow", "failOnDataLoss",
    "minPartitions", "maxRecordsPerPartition", "snapshot", "scan.mode", "ofNow", "path",
)  # fmt: skip
_WRITE = (
    "bootstrap.servers", "table", "write.mode", "columns", "row.kind.column", "delivery", "txnAppId",
    "txnVersion", "checkpointLocation", "path",
)  # fmt: skip
KAFKA_PREFIX = "kafka."
_EXAMPLE = "default.orders"
_STORED_PREFIX = "option."
"""Prefix that Spark gives the options of CREATE TABLE ... USING headrace OPTIONS (...)."""
_NEAR = 0.75
"""Minimum similarity of an unknown name to one of ours that counts as a typo: `colums`, `maxFilesPerTrigger`,
`dbtable`.
"""
_NOT_HANDED_ON = (
    "; in SQL use headrace.db.t (the catalog), or CREATE TEMPORARY VIEW x USING headrace OPTIONS (table 'db.t', ...):"
    " Spark does not pass the OPTIONS of CREATE TABLE to a Python source (SELECT ... FROM t WITH (table 'db.t') works)"
)
_CHANGELOG, LAKE = "$changelog", "$lake"
_OF_VIEWS = ("bootstrap.servers", "table", "path", "columns", "where", "limit", "snapshot", "endingTimestamp")
_OF_THE_LAKE_ALONE = ("where", "snapshot", "endingTimestamp")
_MAX_RECORDS_PER_PARTITION = 1_000_000


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read. `parse` raises ValueError for an option that is missing, unknown or malformed."""

    bootstrap: ConnectionSettings
    table: str
    columns: tuple[str, ...] | None
    mode: Mode
    start: Place | None
    end: Place
    predicate: Predicate | None
    limit: int
    max_offsets: int | None
    available_now: AvailableNow | None
    fail_on_data_loss: bool
    min_partitions: int
    max_records: int
    view: View = ""
    metadata: str = ""
    """Metadata table of the lake to read, such as "files"; for the view "lake"."""
    snapshot: int | None = None
    """Lake snapshot to read; for the lake alone."""
    scan_mode: ScanMode = "full"
    of_now: bool = False
    """Whether the ending offsets are those of the moment when the frame was made: expired partitions belong to it."""

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        given = _Given(options, _READ)
        table = given.table()
        stated = given.choice("mode", ("current", "changelog", "upsert"), None)
        if table.lower().endswith(_CHANGELOG):
            table = table[: -len(_CHANGELOG)]
            if stated not in (None, "changelog", "upsert"):
                raise ValueError(
                    f"{table}{_CHANGELOG} returns every change of {table}: leave mode '{stated}' out"
                )
            stated = stated or "changelog"
        name, dollar, _ = table.partition("$")
        view: View = ""
        metadata = ""
        if dollar:
            suffix = table[len(name) :].lower()
            metadata = suffix.removeprefix(f"{LAKE}$") if suffix.startswith(f"{LAKE}$") else ""
            known = suffix == LAKE or metadata
            if not known or (stated is not None and given.text("mode") is None):
                raise ValueError(
                    f"{table}: the views of {name} are {_CHANGELOG}, {LAKE}, and the lake's own tables, such as"
                    f" {LAKE}$snapshots"
                )
            view, table = "lake", name
            wrong = [each for each in _READ if given.text(each) is not None and each not in _OF_VIEWS]
            if metadata:
                wrong += [each for each in _OF_THE_LAKE_ALONE if given.text(each) is not None]
            if wrong:
                raise ValueError(
                    f"option '{wrong[0]}' applies to the log of {name}, not to {name}{suffix}: leave it out"
                )
        elif given.text("snapshot") is not None:
            raise ValueError(
                f"option 'snapshot' applies only to the lake of {name}, {name}{LAKE}: leave it out"
            )
        mode = stated or "current"
        limit = given.number("limit", 0)
        end = given.place("endingOffsets", "endingTimestamp", ("latest",))
        return cls(
            bootstrap=given.server(),
            table=table,
            columns=given.names("columns"),
            mode=cast(Mode, mode),
            start=given.place("startingOffsets", "startingTimestamp", ("full", "earliest", "latest")),
            end="latest" if end is None else end,
            predicate=given.json("where"),
            limit=-1 if limit is None else limit,
            max_offsets=given.number("maxOffsetsPerTrigger", 1),
            available_now=cast(
                AvailableNow | None, given.choice("availableNow", ("false", "true", "capped"), None)
            ),
            fail_on_data_loss=given.flag("failOnDataLoss", default=True),
            min_partitions=given.number("minPartitions", 1) or 1,
            max_records=given.number("maxRecordsPerPartition", 1) or _MAX_RECORDS_PER_PARTITION,
            view=view,
            metadata=metadata,
            snapshot=given.number("snapshot", 1),
            scan_mode=cast(ScanMode, given.choice("scan.mode", ("full", "log"), "full")),
            of_now=given.flag("ofNow", default=False),
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write.

    `mode` None: append to a log table; upsert the frame's columns into a PK table. `columns` None: the frame's.
    """

    bootstrap: ConnectionSettings
    table: str
    mode: WriteMode | None
    columns: tuple[str, ...] | None
    row_kind_column: str | None
    delivery: Delivery
    transaction: tuple[str, int] | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> WriteOptions:
        given = _Given(options, _WRITE)
        mode = given.choice("write.mode", ("append", "upsert", "delete", "partial"), None)
        app, version = given.text("txnAppId"), given.number("txnVersion", 0)
        if (app is None) != (version is None):
            raise ValueError("txnAppId and txnVersion belong together: give both or neither")
        columns = given.names("columns")
        if columns is not None and mode is None:
            mode = "partial"
        if columns is not None and mode not in ("partial", "delete"):
            raise ValueError(
                f"the option 'columns' applies to partial updates and deletes, not to write.mode '{mode}'"
            )
        return cls(
            bootstrap=given.server(),
            table=given.table(),
            mode=cast("WriteMode | None", mode),
            columns=columns,
            row_kind_column=given.text("row.kind.column"),
            delivery=cast(
                Delivery, given.choice("delivery", ("exactly-once", "at-least-once"), "exactly-once")
            ),
            transaction=None if app is None or version is None else (app, version),
        )


def server_options(settings: ConnectionSettings) -> dict[str, str]:
    """Return the options with a server's address and credentials."""
    properties = {f"{KAFKA_PREFIX}{name}": value for name, value in settings.properties}
    return {"bootstrap.servers": settings.bootstrap, **properties}


def server_of(options: Mapping[str, str]) -> ConnectionSettings:
    """Return the server from options that also contain others."""
    of_server = {
        name: value
        for name, value in options.items()
        if plain(name) == plain("bootstrap.servers") or name.lower().startswith(KAFKA_PREFIX)
    }
    return _Given(of_server, ("bootstrap.servers",)).server()


def plain(name: str) -> str:
    """Return an option's name in the form used for comparison."""
    return name.lower().replace(".", "").replace("_", "")


def names_server(options: Mapping[str, str]) -> bool:
    """Return whether the options name a server."""
    places = {plain("bootstrap.servers"), plain("kafka.bootstrap.servers")}
    return any(plain(name.lower().removeprefix(_STORED_PREFIX)) in places for name in options)


def _ours(options: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """Return our options by plain name. Raises ValueError for an unknown name that is close to one of ours."""
    names = {plain(name): name for name in known}
    every = {plain(name): name for name in (*_READ, *_WRITE)}
    found: dict[str, str] = {}
    for name, value in options.items():
        stored = name.lower().startswith(_STORED_PREFIX)
        word = plain(name[len(_STORED_PREFIX) :] if stored else name)
        if word in names:
            if not stored or word not in found:
                found[word] = str(value)
        elif word not in every:
            near = difflib.get_close_matches(word, names, n=1, cutoff=_NEAR)
            if near:
                raise ValueError(
                    f"unknown option {name}: did you mean {names[near[0]]}? The options are {', '.join(known)}"
                )
    return found


class _Given:
    """Given options by plain name; each method reads one and checks it."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._properties: dict[str, str] = {}
        others = {}
        for name, value in options.items():
            word = name.lower().removeprefix(_STORED_PREFIX)
            if word.startswith(KAFKA_PREFIX):
                self._properties[word[len(KAFKA_PREFIX) :]] = str(value)
            else:
                others[name] = value
        self._values = _ours(others, known)

    def text(self, name: str) -> str | None:
        return self._values.get(plain(name)) or None

    def table(self) -> str:
        """Return the table's path from the option `table`, or from the path that is loaded or saved."""
        path = self.text("path")
        if self.text("table") is None and path is not None and not re.search(r"[/:\\]", path):
            return path
        table = self.text("table")
        if table is None:
            raise ValueError(
                f"option 'table' is missing, for example .option('table', '{_EXAMPLE}'){_NOT_HANDED_ON}"
            )
        return table

    def server(self) -> ConnectionSettings:
        """Return the server, with the given properties; else those of the environment."""
        named = self._properties.pop("bootstrap.servers", None)
        place = self.text("bootstrap.servers") or named or environment_server()
        return ConnectionSettings.make(place, self._properties or None)

    def choice(self, name: str, choices: tuple[str, ...], default: str | None) -> str | None:
        value = self.text(name)
        if value is not None and value.lower() not in choices:
            raise ValueError(f"{name} is '{value}': use {', '.join(choices)}")
        return default if value is None else value.lower()

    def names(self, name: str) -> tuple[str, ...] | None:
        text = self._values.get(plain(name))
        if text is None:
            return None
        found = tuple(part.strip() for part in text.split(",") if part.strip())
        if not found:
            raise ValueError(f"option '{name}' names no column: write a,b or leave it out for all")
        return found

    def number(self, name: str, least: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ValueError(f"{name} is '{text}': give a whole number of at least {least}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), "true" if default else "false") == "true"

    def json(self, name: str) -> Any:
        text = self.text(name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError:
            value = None
        if not isinstance(value, list) or not value:
            raise ValueError(
                f"{name} is '{text}': expected the JSON that tablelayer.spark.table(...).where(...) makes"
            )
        return value

    def place(self, offsets: str, timestamp: str, words: tuple[str, ...]) -> Place | None:
        text, time = self.text(offsets), self.text(timestamp)
        if text is not None and time is not None:
            raise ValueError(f"{offsets} and {timestamp} exclude each other: give one")
        if time is not None:
            return _milliseconds(time, timestamp)
        if text is None or text.lower() in words:
            return None if text is None else text.lower()
        try:
            value = json.loads(text)
            if value and all(isinstance(each, dict) for each in value.values()):
                return {str(name): _by_bucket(each) for name, each in value.items()}
            return _by_bucket(value)
        except (ValueError, TypeError, AttributeError):
            raise ValueError(
                f"""{offsets} is '{text}': use {", ".join(words)}, or JSON such as {{"0": 17}}, of a partitioned"""
                """ table {"2024-09-19": {"0": 17}}"""
            ) from None


def _by_bucket(value: Mapping[str, Any]) -> dict[int, int]:
    return {int(bucket): int(offset) for bucket, offset in value.items()}


def _milliseconds(text: str, option: str) -> int:
    if re.fullmatch("-?[0-9]+", text):
        return max(0, int(text))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{option} is '{text}': give milliseconds since 1970, or a time such as 2024-09-19T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return max(0, int(moment.timestamp() * 1000))
