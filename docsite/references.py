"""Reference pages, made from the declarations in the program. `python -m docsite references` writes them to `docs/`."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import typer

import headrace
import headrace.spark
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigKey
from headrace.broker.configs.kafka import KAFKA_CONFIGS
from headrace.broker.configs.topics import TOPIC_CONFIGS
from headrace.broker.groups.group_configs import GROUP_CONFIGS
from headrace.tablelayer.cli.main import app
from headrace.tablelayer.client.admin.databases import AsyncAdmin
from headrace.tablelayer.client.admin.kafka import AsyncKafkaAdmin
from headrace.tablelayer.client.admin.security import AsyncSecurityAdmin
from headrace.tablelayer.client.blocking.databases import Admin
from headrace.tablelayer.client.blocking.kafka import KafkaAdmin
from headrace.tablelayer.client.blocking.security import SecurityAdmin
from headrace.tablelayer.model.options.table_options import DECLARED
from headrace.tablelayer.server.extension import TableExtension

CONSOLE_WIDTH = 90


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _config_rows(keys: Iterable[ConfigKey], *, dynamic: bool) -> Iterator[str]:
    for key in sorted(keys, key=lambda key: key.name):
        default = "–" if key.default is None else f"`{_cell(key.default)}`" if key.default else "(empty)"
        kind = key.type.name.lower() + (f": {', '.join(key.choices)}" if key.choices else "")
        changed = (" | yes" if key.dynamic else " | no") if dynamic else ""
        yield f"| `{key.name}` | {_cell(key.doc)} | {default} | {_cell(kind)}{changed} |"


def configuration() -> str:
    """Return the page of configurations of brokers, topics and groups."""
    extension = TableExtension()
    known = BrokerConfig({}, extension.broker_configs()).keys
    foreign = {key.name for key in KAFKA_CONFIGS}
    ours = [key for name, key in known.items() if name not in foreign]
    others = [key for name, key in known.items() if name in foreign]
    families = [key for key in extension.broker_configs() if key.name.endswith("*") and key.name not in known]
    options = set(DECLARED)
    of_tables = [
        key for key in extension.topic_configs() if key.name not in options and key.name not in TOPIC_CONFIGS
    ]
    head = "| name | what it does | default | type | while it runs |\n|---|---|---|---|---|"
    short = "| name | what it does | default | type |\n|---|---|---|---|"
    return "\n".join(
        [
            "# Configuration",
            "",
            "This page lists all configurations. Names and meanings are Kafka's if Kafka has the configuration."
            " `headrace serve` reads configurations of the broker from `--set NAME=VALUE`, or from a `.properties` or"
            " `.toml` file (`--config FILE`). `headrace configs` shows and changes them. A configuration of security holds"
            " for one listener with the prefix `listener.name.<name in lower case>.` ([Security](security.md)). Options of"
            " tables are in [Table options](../headrace/tablelayer/OPTIONS.md).",
            "",
            "## Of the broker",
            "",
            "Configurations that are marked in the last column can be changed at run time, for one broker or all.",
            "",
            head,
            *_config_rows([*ours, *families], dynamic=True),
            "",
            "## Of topics",
            "",
            "Set with `headrace topics create --set`, changed with `headrace topics alter`. If only the default of a"
            " configuration is accepted, its text says why.",
            "",
            short,
            *_config_rows([*TOPIC_CONFIGS.values(), *of_tables], dynamic=False),
            "",
            "## Of consumer groups",
            "",
            "Changed with `headrace configs set group NAME`.",
            "",
            short,
            *_config_rows(GROUP_CONFIGS.values(), dynamic=False),
            "",
            "## Kafka's other configurations",
            "",
            "These are known by name, so that a `server.properties` of Kafka is understood. Settings that change nothing"
            " are accepted and ignored. Settings whose effect would be missing are refused.",
            "",
            head,
            *_config_rows(others, dynamic=True),
            "",
        ]
    )


# -- the command


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Return every command that `--help` shows, by its words."""
    yield from _commands((), typer.main.get_command(app))


def _commands(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if getattr(command, "hidden", False):
        return
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands((*words, name), each)


def command_line() -> str:
    parts = [
        "# The `headrace` command",
        "",
        "`HEADRACE_SERVER` replaces `--server`, `HEADRACE_CONFIG` replaces `--config`. The exit code is 0, or 1 with a"
        " sentence on standard error, or 2 for a command that is used wrongly. `-o json` writes one object per line, with"
        " all columns of the table.",
        "",
    ]
    for words, command in commands():
        context = command.make_context(" ".join(("headrace", *words)), [], resilient_parsing=True)
        context.terminal_width = context.max_content_width = CONSOLE_WIDTH
        title = (
            "## headrace" if not words else f"{'###' if len(words) > 1 else '##'} headrace {' '.join(words)}"
        )
        parts += [title, "", "```text", command.get_help(context).rstrip(), "```", ""]
    return "\n".join(parts)


# -- the client

CONNECTION_PARTS = {
    each.__name__: each
    for each in (headrace.Connection, headrace.Table, headrace.Scan, Admin, KafkaAdmin, SecurityAdmin)
}
_ASYNC_OF = {
    "Table": headrace.AsyncTable,
    "Admin": AsyncAdmin,
    "KafkaAdmin": AsyncKafkaAdmin,
    "SecurityAdmin": AsyncSecurityAdmin,
}
_ATTRIBUTES = {
    "Admin": "connection.admin",
    "KafkaAdmin": "connection.kafka",
    "SecurityAdmin": "connection.security",
}


def public_members(cls: type) -> Iterator[tuple[str, Any]]:
    """Return methods and properties without an underscore, in the order of declaration."""
    seen = set()
    for base in cls.__mro__[:-1]:
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            if inspect.isfunction(member) or isinstance(member, property | classmethod):
                seen.add(name)
                yield name, member


def doc_of(owner: str, name: str, member: Any) -> str:
    """Return the docstring of a member. A blocking member without one has that of the asynchronous member."""
    text = inspect.getdoc(member.__func__ if isinstance(member, classmethod) else member)
    if not text and owner in _ASYNC_OF:
        text = inspect.getdoc(getattr(_ASYNC_OF[owner], name, None))
    return text or ""


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    returned = signature.return_annotation
    shown = [_parameter(each) for each in _with_star(parameters)]
    arrow = "" if returned in (inspect.Signature.empty, "None", None) else f" -> {_plain(returned)}"
    line = f"{name}({', '.join(shown)}){arrow}"
    if len(line) <= CONSOLE_WIDTH - 10:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in shown), f"){arrow}"])


def _with_star(parameters: list[inspect.Parameter]) -> Iterator[inspect.Parameter | None]:
    keyword = False
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not keyword:
            keyword = True
            yield None
        yield each


def _parameter(parameter: inspect.Parameter | None) -> str:
    if parameter is None:
        return "*"
    text = parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {_plain(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        text += f" = {parameter.default!r}"
    return text


def _plain(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return re.sub(r"\b(?:typing|collections\.abc|headrace\.tablelayer(?:\.\w+)*)\.", "", text)


def _prose(text: str) -> list[str]:
    """Return a docstring as Markdown. Indented lines are code."""
    lines: list[str] = []
    code = False
    for line in text.splitlines():
        indented = line.startswith("    ")
        if indented and not code and (not lines or not lines[-1].strip()):
            lines.append("```python")
            code = True
        elif code and line.strip() and not indented:
            while not lines[-1].strip():
                lines.pop()
            lines += ["```", ""]
            code = False
        lines.append(line[4:] if code else line)
    return [*lines, "```"] if code else lines


def _class(name: str, cls: type, title: str = "") -> list[str]:
    lines = [f"## {title or name}", "", *_prose(inspect.getdoc(cls) or ""), ""]
    if issubclass(cls, enum.Enum):
        return [*lines, ", ".join(f"`{each.name}`" for each in cls), ""]
    if is_dataclass(cls):
        told = _field_comments(cls)
        lines += ["| field | type | what it is |", "|---|---|---|"]
        for each in fields(cls):
            if not each.name.startswith("_"):
                lines.append(
                    f"| `{each.name}` | `{_cell(_plain(each.type))}` | {_cell(told.get(each.name, ''))} |"
                )
        lines.append("")
    for member_name, member in public_members(cls):
        lines += [f"### {name}.{member_name}", ""]
        if isinstance(member, property):
            returned = member.fget.__annotations__.get("return", "")
            lines += ["```python", f"{member_name}: {_plain(returned)}", "```", ""]
        else:
            function = member.__func__ if isinstance(member, classmethod) else member
            lines += ["```python", _signature(member_name, function), "```", ""]
        lines += [*_prose(doc_of(name, member_name, member)), ""]
    return lines


def _field_comments(cls: type) -> dict[str, str]:
    """Return the `#:` comments above fields, with the defaults."""
    told: dict[str, str] = {}
    comment: list[str] = []
    for line in inspect.getsource(cls).splitlines():
        text = line.strip()
        if text.startswith("#"):
            comment.append(text.lstrip("#: "))
        elif found := re.match(r"(\w+): [^=]+(?:= (.+))?$", text):
            default = f" Default: `{found.group(2)}`." if found.group(2) else ""
            told[found.group(1)] = (" ".join(comment) + default).strip()
            comment = []
        elif text:
            comment = []
    return told


def client() -> str:
    """Return the page of the names in `headrace`."""
    parts = ["# Python client", "", *_prose(inspect.getdoc(headrace) or ""), "", "## connect", ""]
    parts += ["```python", _signature("headrace.connect", headrace.connect), "```", ""]
    parts += [*_prose(inspect.getdoc(headrace.connect) or ""), "", "## connect_async", ""]
    parts += ["```python", _signature("await headrace.connect_async", headrace.connect_async), "```", ""]
    parts += [*_prose(inspect.getdoc(headrace.connect_async) or ""), ""]
    for name, part in CONNECTION_PARTS.items():
        title = f"{name}: `{_ATTRIBUTES[name]}`" if name in _ATTRIBUTES else name
        parts += _class(name, part, title)
    rest = [
        name
        for name in headrace.__all__
        if name not in (*CONNECTION_PARTS, "connect", "connect_async", "spark")
    ]
    errors = [name for name in rest if issubclass(getattr(headrace, name), Exception)]
    for name in rest:
        if name not in errors and not name.startswith("Async"):
            parts += _class(name, getattr(headrace, name))
    parts += ["## AsyncConnection, AsyncTable, AsyncScan", ""]
    parts += [
        "`connect_async` gives an `AsyncConnection`. It has the same methods, to be awaited.",
        "",
        "## Errors",
        "",
    ]
    for name in errors:
        parts += [f"### {name}", "", *_prose(inspect.getdoc(getattr(headrace, name)) or ""), ""]
    parts += ["## headrace.spark", "", *_prose(inspect.getdoc(headrace.spark) or ""), ""]
    for name in headrace.spark.__all__:
        function = getattr(headrace.spark, name)
        parts += [f"### headrace.spark.{name}", "", "```python", _signature(name, function), "```", ""]
        parts += [*_prose(inspect.getdoc(function) or ""), ""]
    return "\n".join(parts)


PAGES = {
    "configuration.md": configuration,
    "cli.md": command_line,
    "client.md": client,
}
"""The pages that are made from declarations, by their file in `docs/`."""
