"""Brokers show each other who they are, by the listener that they use among themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography import x509

from broker.config_key import ConfigError
from broker.net.outgoing import OutgoingConnection
from broker.security.inter_broker import InterBroker
from broker.security.sasl.scram import ScramMechanism, credential_of, salted_password
from broker.security.sasl.users import Change
from broker.testing.certificates import Identity, identity
from broker.testing.cluster import DirectCluster, direct_cluster
from broker.tests.security.people import SECURED
from protocol.errors import ErrorCode
from protocol.headers import RequestHeader, decode_response_header, encode_request_header
from protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

AUTHORITY = identity("authority")
PASSWORD, STORE_PASSWORD = "broker-secret", "store-secret"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OWN = "listener.name.internal."


def settings(folder: Path, protocol: str, **changes: str | None) -> dict[str, str]:
    """With certificates of brokers in the folder; `_` stands for `.`."""
    (folder / "ca.pem").write_text(AUTHORITY.certificate_pem)
    write(folder, identity("localhost", AUTHORITY))
    given: Mapping[str, str | None] = {
        **SECURED,
        "super.users": "User:broker;User:CN=localhost",
        "listeners": "INTERNAL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": f"INTERNAL:{protocol},PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(folder / "broker.p12"),
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        f"{OWN}ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"{OWN}plain.sasl.jaas.config": (
            f'{PLAIN} required username="broker" password="{PASSWORD}" user_broker="{PASSWORD}";'
        ),
        f"{OWN}scram-sha-512.sasl.jaas.config": f'{SCRAM} required username="broker" password="{PASSWORD}";',
        **{name.replace("_", "."): value for name, value in changes.items()},
    }
    return {name: value for name, value in given.items() if value is not None}


def write(folder: Path, own: Identity) -> None:
    (folder / "broker.p12").write_bytes(own.pkcs12(STORE_PASSWORD))


async def connected(cluster: DirectCluster) -> OutgoingConnection:
    """From broker 1 to broker 2, as this one has registered."""
    await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
    one = cluster.brokers[1]
    endpoints = one.context.metadata.image.brokers[2].endpoints
    host, port = next((host, port) for name, host, port in endpoints if name == "INTERNAL")
    async with asyncio.timeout(20):
        return await one.broker._network.connect(host, port)


async def may_all(connection: OutgoingConnection) -> bool:
    """Whether it is a super user's."""
    request = DescribeAclsRequest(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    version = DescribeAclsRequest.MAX_VERSION
    header = encode_request_header(
        RequestHeader(DescribeAclsRequest.API_KEY, version, 5, "b"), request.header_version(version)
    )
    async with asyncio.timeout(20):
        frame = await connection.ask([header, request.encode(version)])
    number, position = decode_response_header(frame, DescribeAclsResponse.header_version(version))
    assert number == 5
    return DescribeAclsResponse.decode(frame, version, None, position).error_code == ErrorCode.NONE


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL", "PLAINTEXT"])
async def test_a_broker_is_known_to_the_others(tmp_path: Path, protocol: str) -> None:
    async with direct_cluster(tmp_path, 2, config=settings(tmp_path, protocol)) as cluster:
        connection = await connected(cluster)
        assert await may_all(connection) is (protocol != "PLAINTEXT")
        connection.close("enough")


async def test_a_broker_is_known_by_scram(tmp_path: Path) -> None:
    config = settings(tmp_path, "SASL_SSL", sasl_mechanism_inter_broker_protocol="SCRAM-SHA-512")
    async with direct_cluster(tmp_path, 2, config=config) as cluster:
        with pytest.raises(ConnectionError, match="does not let in the user broker by SCRAM-SHA-512"):
            await connected(cluster)
        mechanism, salt = ScramMechanism.SHA_512, b"salt"
        salted = salted_password(mechanism, PASSWORD, salt, 4096)
        change = Change("broker", mechanism, credential_of(mechanism, salted, salt, 4096))
        await cluster.brokers[2].broker.sasl.users.alter(lambda: [change])
        connection = await connected(cluster)
        assert await may_all(connection)
        connection.close("enough")


async def test_a_session_is_renewed_before_it_ends(tmp_path: Path) -> None:
    config = settings(tmp_path, "SASL_SSL", connections_max_reauth_ms="1300")
    async with direct_cluster(tmp_path, 2, config=config) as cluster:
        connection = await connected(cluster)
        until = asyncio.get_running_loop().time() + 1.6
        while asyncio.get_running_loop().time() < until:
            assert await may_all(connection)
            await asyncio.sleep(0.02)
        assert not connection.closed
        connection.close("enough")


async def test_new_certificates_count_for_the_next_connection_and_broken_ones_do_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with direct_cluster(tmp_path, 2, config=settings(tmp_path, "SSL")) as cluster:
        (await connected(cluster)).close("enough")
        introduction = cluster.brokers[1].broker._network.introduction
        assert isinstance(introduction, InterBroker)
        before = introduction._context
        write(tmp_path, identity("localhost", AUTHORITY))
        (await connected(cluster)).close("enough")
        changed = introduction._context
        assert changed is not before
        (tmp_path / "ca.pem").write_text("nothing")
        with caplog.at_level(logging.ERROR, "headrace.security"):
            (await connected(cluster)).close("enough")
        assert introduction._context is changed
        assert "keep to the certificates in use" in caplog.text


async def test_a_broker_of_another_name_is_not_asked(tmp_path: Path) -> None:
    config = settings(tmp_path, "SSL")
    write(tmp_path, identity("elsewhere", AUTHORITY, names=(x509.DNSName("elsewhere"),)))
    async with direct_cluster(tmp_path, 2, config=config) as cluster:
        with pytest.raises(ConnectionError, match="certificate is not accepted"):
            await connected(cluster)
    lenient = {**config, f"{OWN}ssl.endpoint.identification.algorithm": ""}
    async with direct_cluster(tmp_path / "lenient", 2, config=lenient) as cluster:
        (await connected(cluster)).close("enough")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sasl_mechanism_inter_broker_protocol": None}, r"sasl\.mechanism\.inter\.broker\.protocol \(it is GSSAPI\)"),
        ({"sasl_mechanism_inter_broker_protocol": "OAUTHBEARER"}, "to one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (
            {f"{OWN}plain.sasl.jaas.config": f'{PLAIN} required user_broker="{PASSWORD}";'},
            r"listener\.name\.internal\.plain\.sasl\.jaas\.config has to have username and password",
        ),
        ({"ssl_truststore_location": "/nowhere/ca.pem"}, "ssl.truststore.location: /nowhere/ca.pem cannot be read"),
    ],
)  # fmt: skip
async def test_a_member_of_a_cluster_that_could_not_say_who_it_is_does_not_start(
    tmp_path: Path, changes: dict[str, str | None], complaint: str
) -> None:
    config = settings(tmp_path, "SASL_SSL", **changes)
    with pytest.raises(ConfigError, match=complaint) as refused:
        async with direct_cluster(tmp_path, 1, config=config):
            pass
    assert PASSWORD not in str(refused.value)
