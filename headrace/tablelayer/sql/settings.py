"""The settings of a session: `SET 'name' = 'value'`, with the names of Flink's SQL client."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.tablelayer.sql.errors import SqlError


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that is known. `notice` is for values without an effect; other values than `values` are refused."""

    values: tuple[str, ...]
    default: str
    instead: str = ""
    notices: tuple[tuple[str, str], ...] = ()


_MODE = "execution.runtime-mode"
_KNOWN = {
    _MODE: Setting(("batch", "streaming"), "batch"),
    "sql-client.execution.result-mode": Setting(
        ("tableau", "table", "changelog"),
        "tableau",
        notices=(
            ("table", "rows are printed as with 'tableau'"),
            ("changelog", "rows are printed as with 'tableau'; SELECT ... EMIT CHANGES shows changes"),
        ),
    ),
    "table.dml-sync": Setting(
        ("true", "false"), "true", notices=(("false", "each INSERT still waits for its end"),)
    ),
    "table.local-time-zone": Setting(
        ("utc",), "utc", "times are shown in UTC; a query converts them by AT TIME ZONE 'Europe/Berlin'"
    ),
    "table.sql-dialect": Setting(("default",), "default", "statements are Flink's, queries DuckDB's"),
    "table.exec.sink.not-null-enforcer": Setting(
        ("error",), "error", "a row with NULL in a NOT NULL column is refused; leave it out by WHERE"
    ),
    "table.exec.sink.type-length-enforcer": Setting(
        ("ignore", "error"), "ignore", "a text that is longer than CHAR(n) is refused; cut it by left(x, n)",
        (("error", "CHAR(n) and BINARY(n) refuse longer values, and other types have no length"),),
    ),
    "table.exec.legacy-cast-behaviour": Setting(
        ("disabled",), "disabled", "a cast that fails is an error; TRY_CAST gives NULL"
    ),
}  # fmt: skip


class Settings:
    """The settings of one session."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    @property
    def is_streaming(self) -> bool:
        """Whether a SELECT goes on with the changes of its table."""
        return self._given.get(_MODE) == "streaming"

    def set(self, name: str, value: str) -> tuple[str, ...]:
        """Set a value; return notices about it. Raises SqlError for a value that is known to mean something else."""
        known = _KNOWN.get(name.lower())
        if known is None:
            self._given[name] = value
            return (f"'{name}' has no effect here",)
        chosen = value.strip().lower()
        if chosen not in known.values:
            allowed = " or ".join(f"'{each}'" for each in known.values)
            raise SqlError(
                f"'{name}' = '{value}': the value must be {allowed}"
                + (f": {known.instead}" if known.instead else "")
            )
        self._given[name.lower()] = chosen
        return tuple(text for each, text in known.notices if each == chosen)

    def reset(self, name: str | None) -> None:
        """Reset one setting to its default, or all of them (None)."""
        if name is None:
            self._given.clear()
        else:
            self._given.pop(name.lower(), None)
            self._given.pop(name, None)

    def shown(self) -> dict[str, list[str]]:
        """Return the names and values of all settings that act, and of those that were given."""
        every = {**{name: setting.default for name, setting in _KNOWN.items()}, **self._given}
        names = sorted(every)
        return {"setting": names, "value": [every[name] for name in names]}
