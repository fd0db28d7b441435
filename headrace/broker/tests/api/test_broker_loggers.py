"""The resource BROKER_LOGGER: levels of loggers as Kafka's tools describe and change them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.alter_configs import AlterConfigsRequest
from headrace.protocol.messages.alter_configs import AlterConfigsResource as ReplacedResource
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from simulator.direct import DirectBroker, direct_broker

LOGGER = "headrace.test-of-levels"
SET, DELETE, APPEND = 0, 1, 2


@pytest.fixture(autouse=True)
def own_logger() -> Iterator[None]:
    logger, above = logging.getLogger(LOGGER), logging.getLogger("headrace")
    before = above.level
    above.setLevel(logging.INFO)
    yield
    logger.setLevel(logging.NOTSET)
    above.setLevel(before)


async def level(broker: DirectBroker) -> str:
    resource = DescribeConfigsResource(resource_type=8, resource_name="0", configuration_keys=[LOGGER])
    (result,) = (await broker.send(DescribeConfigsRequest(resources=[resource]))).results
    (entry,) = result.configs
    assert (entry.config_source, entry.read_only, entry.is_sensitive) == (6, False, False)
    return entry.value


async def alter(
    broker: DirectBroker, *changes: tuple[str, int, str | None], node: str = "0", validate_only: bool = False
) -> tuple[int, str | None]:
    entries = [AlterableConfig(name=name, config_operation=op, value=value) for name, op, value in changes]
    resource = AlterConfigsResource(resource_type=8, resource_name=node, configs=entries)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    (answer,) = (await broker.send(request)).responses
    return answer.error_code, answer.error_message


async def test_levels_change_as_with_kafka(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        assert await level(broker) == "INFO"
        assert await alter(broker, (LOGGER, SET, "DEBUG"), validate_only=True) == (0, None)
        assert await level(broker) == "INFO"
        for word in ("TRACE", "DEBUG", "WARN", "ERROR", "FATAL"):
            assert await alter(broker, (LOGGER, SET, word.lower())) == (0, None)
            assert await level(broker) == word
        assert not logging.getLogger(LOGGER).isEnabledFor(logging.ERROR)
        assert await alter(broker, (LOGGER, DELETE, None)) == (0, None)
        assert await level(broker) == "INFO"


async def test_a_refused_change_leaves_all_levels_as_they_were(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        good = (LOGGER, SET, "DEBUG")
        for bad, code, words in (
            (("headrace.none", SET, "INFO"), ErrorCode.INVALID_CONFIG, "Logger headrace.none does not exist"),
            ((LOGGER, SET, "INFO"), ErrorCode.INVALID_REQUEST, "twice"),
            (("headrace", SET, "LOUD"), ErrorCode.INVALID_CONFIG, "Valid log levels are TRACE"),
            (("headrace", SET, None), ErrorCode.INVALID_CONFIG, "not a supported log level"),
            (("headrace", APPEND, "INFO"), ErrorCode.INVALID_REQUEST, "APPEND operation is not allowed"),
            (("root", DELETE, None), ErrorCode.INVALID_REQUEST, "root logger is not allowed"),
        ):
            found, message = await alter(broker, good, bad)
            assert (found, words in (message or "")) == (code, True), message
            assert await level(broker) == "INFO"
        for node in ("1", "", "x"):
            assert (await alter(broker, good, node=node))[0] == ErrorCode.INVALID_REQUEST
        replaced = ReplacedResource(resource_type=8, resource_name="0", configs=[])
        (answer,) = (await broker.send(AlterConfigsRequest(resources=[replaced]))).responses
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert await level(broker) == "INFO"
