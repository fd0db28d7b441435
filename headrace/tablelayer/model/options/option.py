"""The declaration of a table option, which also holds its value.

Options are class attributes of `options.TableOptions`. On the class, such an attribute is the declaration
(`TableOptions.kv_ttl_ms.name`, `.doc`, `.alterable`). On an instance, it is the table's value (`settings.kv_ttl_ms`,
an `int | None`, because its type is a duration and its default is None).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec

from headrace.tablelayer.model.options.kafka_formats import KafkaValueFormat

Value = TypeVar("Value")
Read = TypeVar("Read", covariant=True)


class OptionType(msgspec.Struct, Generic[Read], frozen=True):
    """The type of an option's values, and their text form.

    `parse` raises ValueError with a reason; `render` returns the canonical text, which `parse` accepts.
    """

    parse: Callable[[str], Read]
    render: Callable[[Any], str] = str


class Option(Generic[Value]):
    """One declared option.

    `default`: the value of a table that does not set the option, or None; `derived` computes it from the table's
    other options instead. `shown_default`: the text in the documentation for a default without a value of its own.
    `primary_key_only`: semantics R16. `names_columns`: the value is a list of columns, follows their renaming, and
    they cannot be dropped. `partitioned_only`: only for tables with PARTITIONED BY. `value_format`: only for tables
    with values of one of these formats.
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
        """The default in the documentation; None: the option has no value unless it is given."""
        self.doc = doc
        self.alterable = alterable
        self.primary_key_only = primary_key_only
        self.partitioned_only = partitioned_only
        self.names_columns = names_columns
        self.value_format = value_format
        self._derived = derived
        self._attribute = ""

    def effective(self, options: Mapping[str, str]) -> Value:
        """Return the value for a table with these normalized options."""
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
        """Called for the class only: an instance's attributes take precedence because there is no `__set__`."""
        if instance is None:
            return self
        raise AttributeError(f"option '{self.name}' has no value yet: {self._attribute}")


def markdown_rows(options: Iterable[Option[Any]]) -> list[str]:
    """Return rows of OPTIONS.md: name, default, whether it can be altered, its tables, documentation."""
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
