"""Each declared option is read somewhere: one that nothing reads would be accepted and have no effect.

The oracle is the text of the sources. Options of tables, of the client and of Spark are attributes that are read
outside of their declaration. The name of a configuration stands outside of declarations, perhaps made of parts.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import headrace
from headrace.broker.configs.broker_config import BROKER_CONFIGS
from headrace.broker.configs.config_key import ConfigError, ConfigKey
from headrace.broker.configs.kafka import WITHOUT_EFFECT
from headrace.broker.configs.topics import TOPIC_CONFIGS
from headrace.broker.groups.group_configs import GROUP_CONFIGS
from headrace.tablelayer.client.config import ClientConfig
from headrace.tablelayer.lake.tiering_options import SparkOptions
from headrace.tablelayer.model.options.option import Option
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.spark.options import ReadOptions, WriteOptions

DECLARATION = re.compile(r'\b(ConfigKey|_string)\(\s*f?"[^"]+"')
LETTERS_MIN = 8
"""Letters that a text with variable parts must have to be the name of a configuration."""
BY_FAMILY = re.compile(r".*\*|datalake\.(iceberg|paimon)\.warehouse|zookeeper\.ssl\.(key|trust)store\.type")
"""Configurations that are read with all that have their beginning."""
ONE_VALUE = {
    "log.cleaner.threads": "1",
    "zookeeper.ssl.crl.enable": "false",
    "zookeeper.ssl.ocsp.enable": "false",
}
"""Kafka's configurations that may only have the value that is true here."""


@cache
def sources() -> dict[str, str]:
    root = Path(headrace.__file__).parent
    return {str(path): path.read_text() for path in root.rglob("*.py") if "tests" not in path.parts}


def attributes_outside(path: str) -> set[str]:
    texts = (text for name, text in sources().items() if name != path)
    return {found for text in texts for found in re.findall(r"\.([a-z]\w*)", text)}


def unread(configs: list[ConfigKey]) -> list[str]:
    """Return the names of configurations that nothing reads."""
    every = "\n".join(sources().values())
    constants = {
        name: word for word, name in re.findall(r'^(\w+) = ConfigKey\(\s*"([^"]+)"', every, re.MULTILINE)
    }
    undeclared = DECLARATION.sub("", every)
    written = set(re.findall(r'"([^"\n]+)"', undeclared))
    composed = [re.split(r"\{[^}]*\}", text) for text in re.findall(r'f"([^"\n]*\{[^"\n]*)"', undeclared)]
    patterns = {".+".join(map(re.escape, parts)) for parts in composed if sum(map(len, parts)) >= LETTERS_MIN}
    matched = re.compile("|".join(patterns))
    return [
        key.name
        for key in configs
        if key.name not in written
        and matched.fullmatch(key.name) is None
        and f"{constants.get(key.name)}.name" not in every
    ]


def test_options_of_tables_the_client_and_spark_are_read() -> None:
    read = attributes_outside(inspect.getfile(TableOptions))
    ignored = [
        option.name
        for name, option in vars(TableOptions).items()
        if isinstance(option, Option) and name not in read
    ]
    for settings in (ClientConfig, ReadOptions, WriteOptions, SparkOptions):
        own = inspect.getfile(settings) if settings is not SparkOptions else ""  # its method reads it
        ignored += [each.name for each in fields(settings) if each.name not in attributes_outside(own)]
    assert ignored == []


def test_configurations_are_read_or_have_one_value() -> None:
    declared = [
        *BROKER_CONFIGS,
        *TableExtension().broker_configs(),
        *TOPIC_CONFIGS.values(),
        *GROUP_CONFIGS.values(),
    ]
    known = {key.name: key for key in declared}
    ignored = set(unread(declared)) - WITHOUT_EFFECT
    ignored = {name for name in ignored if not BY_FAMILY.fullmatch(name)}
    ignored = {name for name in ignored if not known[name].doc.startswith("No effect here")}
    assert ignored == set(ONE_VALUE)
    for name, value in ONE_VALUE.items():
        assert known[name].default == value
        with pytest.raises(ConfigError):
            known[name].parse("true" if value == "false" else "2")
