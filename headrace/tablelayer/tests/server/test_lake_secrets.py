"""Credentials of lake catalogs, and passwords: which clients get them, through every API that shows configurations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.lake.catalogs import lake_catalog
from headrace.tablelayer.lake.coordinator import LakeStatus, ServerCoordinator, TieringRound
from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.tests.server.tables import run, tables

TOKEN = "a-token-of-the-operators-own"
SECRETS = {
    "datalake.iceberg.token": "s3cret-1",
    "datalake.iceberg.credential": "s3cret-2:s3cret-3",
    "datalake.iceberg.s3.secret-access-key": "s3cret-4",
    "datalake.iceberg.header.Authorization": "s3cret-5",
    "datalake.paimon.fs.s3a.secret.key": "s3cret-6",
}
OPEN = {
    "datalake.iceberg.type": "rest",
    "datalake.iceberg.uri": "http://catalog:8181",
    "datalake.iceberg.warehouse": "s3://lake/wh",
    "datalake.iceberg.s3.endpoint": "http://store:9000",
    "datalake.iceberg.table-default.write.parquet.compression-codec": "zstd",
    "datalake.paimon.warehouse": "/lake/paimon",
}
OTHERS = {
    "schema.registry.url": "http://registry:8081",
    "schema.registry.basic.auth.user.info": "me:s3cret-7",
}


async def described(broker: Any, token: str | None, version: int = 2) -> dict[str, str | None]:
    table = broker.context.metadata.topic("default.t")
    answer = await broker.send(m.DescribeLakeRequest(table_id=table.topic_id, token=token), version)
    assert answer.error_code == 0, answer.error_message
    assert "s3cret" not in repr(answer)
    return {each.key: each.value for each in answer.properties}


@pytest.mark.parametrize("token", [None, TOKEN])
def test_lake_credentials_need_the_tiering_token(
    tmp_path: Path, token: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    config = {**SECRETS, **OPEN, **OTHERS, **({"datalake.tiering.token": token} if token else {})}
    hidden: Mapping[str, str | None] = {**OPEN, **dict.fromkeys(SECRETS)}

    async def work() -> None:
        async with tables(tmp_path, config) as all_tables:
            await all_tables.create("a INT", datalake_enabled="true")
            for presented in (None, "", "wrong-" + TOKEN, TOKEN[:-1]):
                assert await described(all_tables.broker, presented) == hidden
            for version in (0, 1):
                assert await described(all_tables.broker, TOKEN, version) == hidden
            told = await described(all_tables.broker, TOKEN)
            assert told == ({**OPEN, **SECRETS} if token else hidden)
            for name in ("", "1"):
                resource = DescribeConfigsResource(
                    resource_type=4, resource_name=name, configuration_keys=None
                )
                answer = await all_tables.broker.send(
                    DescribeConfigsRequest(resources=[resource], include_synonyms=True)
                )
                entries = {each.name: each for each in answer.results[0].configs}
                if not entries:
                    continue
                assert "s3cret" not in repr(answer)
                assert TOKEN not in repr(answer)
                for key in (*SECRETS, "schema.registry.basic.auth.user.info"):
                    entry = entries[key]
                    assert (entry.value, entry.is_sensitive, entry.config_type) == (None, True, 9)
                for key, value in OPEN.items():
                    assert (entries[key].value, entries[key].is_sensitive) == (value, False)

    run(work)
    assert "s3cret" not in caplog.text
    assert TOKEN not in caplog.text


def test_a_missing_credential_is_named_to_the_job_and_never_shown() -> None:
    status = LakeStatus(True, "iceberg", None, properties={**OPEN, **SECRETS})
    assert "s3cret" not in repr(status)
    status = LakeStatus(True, "iceberg", None, properties={**OPEN, "datalake.iceberg.token": None})
    with pytest.raises(LakeError, match=r"datalake\.iceberg\.token .*HEADRACE_TIERING_TOKEN"):
        lake_catalog(status, None, TablePath("a", "b"))
    paimon = LakeStatus(True, "paimon", None, properties={**OPEN, "datalake.iceberg.token": None})
    assert lake_catalog(paimon, None, TablePath("a", "b")).properties == {"warehouse": "/lake/paimon"}
    request = m.DescribeLakeRequest(token=TOKEN)
    assert TOKEN not in repr(request)


def test_a_failure_that_quotes_a_credential_is_told_without_it() -> None:
    class Connection:
        def call(self, request: Any, response: type[Any], **_: Any) -> Any:
            self.sent = request
            properties = [m.LakeProperty(key=key, value=value) for key, value in {**SECRETS, **OPEN}.items()]
            return response(properties=properties) if response is m.DescribeLakeResponse else response()

    connection = Connection()
    coordinator = ServerCoordinator(connection, "w", TOKEN)
    table_id = m.DescribeLakeRequest().table_id
    coordinator.describe(table_id)
    granted = TieringRound("t", table_id, 1, 1000)
    coordinator.release(
        granted, f"403 for s3cret-1 at http://catalog:8181 by {SECRETS['datalake.iceberg.credential']}"
    )
    assert connection.sent.failure == "403 for [hidden] at http://catalog:8181 by [hidden]"
    coordinator.release(granted)
    assert connection.sent.failure is None


def test_a_job_presents_the_token_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connection:
        def call(self, request: Any, response: type[Any], **_: Any) -> Any:
            self.sent = request
            return response()

    connection = Connection()
    for set_to, presented in ((f" {TOKEN}\n", TOKEN), ("", None), (None, None)):
        monkeypatch.delenv("HEADRACE_TIERING_TOKEN", raising=False)
        if set_to is not None:
            monkeypatch.setenv("HEADRACE_TIERING_TOKEN", set_to)
        coordinator = ServerCoordinator(connection, "w")
        coordinator.describe(m.DescribeLakeRequest().table_id)
        assert connection.sent.token == presented
        assert TOKEN not in repr(coordinator)


def test_visible_locations_have_no_password_and_short_tokens_are_refused() -> None:
    keys = TableExtension().broker_configs()
    for name in ("datalake.iceberg.uri", "datalake.iceberg.warehouse", "datalake.paimon.warehouse"):
        with pytest.raises(ConfigError, match="would be visible to all clients") as caught:
            BrokerConfig({name: "http://me:s3cret@catalog:8181"}, keys)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match="16 characters") as caught:
        BrokerConfig({"datalake.tiering.token": "s3cret"}, keys)
    assert "s3cret" not in str(caught.value)
