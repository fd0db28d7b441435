"""What a table option is: its declaration, which is its value too.

Options are class attributes of `options.TableOptions`. Of the class, such an attribute is the declaration
(`TableOptions.kv_ttl_ms.name`, `.doc`, `.alterable`); of an instance, the value that the table goes by
(`settings.kv_ttl_ms`, an `int | None`, because its type is a duration and its default is None).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec

from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat

Value = TypeVar("Value")
Read = TypeVar("Read", covariant=True)


class OptionType(msgspec.Struct, Generic[Read], frozen=True):
    """What values of an option are, and how they are written.

    `parse` raises ValueError with a reason; `render` gives the canonical writing, which `parse` reads back.
    """

    parse: Callable[[str], Read]
    render: Callable[[Any], str] = str


class Option(Generic[Value]):
    """One declared option.

    `default`: the value of a table that does not have the option; None: there is none. `derived` gives it instead
    where a table's other options decide it. `shown_default`: what to say of an option whose default is not a value
    of its own. `primary_key_only`: semantics R16. `names_columns`: its value is a list of columns, follows their
    renaming, and they cannot be dropped. `partitioned_only`: only tables with PARTITIONED BY may have it.
    `value_format`: only tables with values of one of these formats may have it.
    """

    def __init__(
        self,
        name: str,
        value_type: OptionType[Value],
        default: Value,
        doc: str,
        *,
        derived: Callable[[Mapping[str, str]], Value] | None = None,
        shown_default: str | None = None,
        alterable: bool = False,
        primary_key_only: bool = False,
        partitioned_only: bool = False,
        names_columns: bool = False,
        value_format: Sequence[KafkaValueFormat] | None = None,
    ) -> None:
        self.name = name
        self.value_type = value_type
        self.default = default
        self.default_text = shown_default if default is None else value_type.render(default)
        """As documentation says it; None: the option has no value unless it is given."""
        self.doc = doc
        self.alterable = alterable
        self.primary_key_only = primary_key_only
        self.partitioned_only = partitioned_only
        self.names_columns = names_columns
        self.value_format = value_format
        self._derived = derived
        self._attribute = ""

    def effective(self, options: Mapping[str, str]) -> Value:
        """The value for a table with these normalised options."""
        text = options.get(self.name)
        if text is not None:
            return self.value_type.parse(text)
        return self.default if self._derived is None else self._derived(options)

    def __set_name__(self, owner: type[Any], attribute: str) -> None:
        self._attribute = attribute

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Option[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type[Any]) -> Value: ...

    def __get__(self, instance: object | None, owner: type[Any]) -> Option[Value] | Value:
        """Python asks here for the class's only: an instance's own attributes come before what has no `__set__`."""
        if instance is None:
            return self
        raise AttributeError(f"option '{self.name}' has no value yet: {self._attribute}")


def markdown_rows(options: Iterable[Option[Any]]) -> list[str]:
    """Rows of OPTIONS.md: name, default, whether it can be altered, which tables may have it, documentation."""
    return [
        f"| `{each.name}` | {'–' if each.default_text is None else f'`{each.default_text}`'}"
        f" | {'yes' if each.alterable else 'no'} | {_tables(each)} | {each.doc} |"
        for each in options
    ]


def _tables(option: Option[Any]) -> str:
    if option.primary_key_only:
        return "with a primary key"
    if option.partitioned_only:
        return "partitioned"
    return "all" if option.value_format is None else f"with {' or '.join(option.value_format)} values"
