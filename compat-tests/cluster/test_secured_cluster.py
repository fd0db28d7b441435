"""A cluster with encryption everywhere: to ZooKeeper, between brokers, and with clients. A stranger learns nothing
from any of its ports.
"""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from joserfc import jwk, jwt
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from conftest import ServerProcess
from simulator.certificates import identity
from simulator.ports import free_port
from simulator.zookeeper import running_zookeeper

pytestmark = [pytest.mark.soak, pytest.mark.timeout(300)]
DEADLINE_SECONDS = 60
STORE_PASSWORD, ZK_PASSWORD, BROKER_PASSWORD, ANN_PASSWORD = (
    "store-secret",
    "zk-secret",
    "b-secret",
    "ann-secret",
)
AUTH = "org.apache.zookeeper.server.auth"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
VALUES = 300


class Member(ServerProcess):
    """A broker with a listener for brokers and one for clients, both SASL_SSL."""

    def __init__(self, folder, number: int, certificates, zookeeper: str, mechanism: str) -> None:
        """Create a broker. `mechanism` is that of logins between brokers."""
        super().__init__(folder)
        self.inside = free_port()
        (folder / "server.properties").write_text(
            f"""
node.id={number}
listeners=INSIDE://localhost:{self.inside},CLIENTS://localhost:{self.port}
listener.security.protocol.map=INSIDE:SASL_SSL,CLIENTS:SASL_SSL
inter.broker.listener.name=INSIDE
sasl.mechanism.inter.broker.protocol={mechanism}
sasl.enabled.mechanisms=PLAIN
listener.name.inside.sasl.enabled.mechanisms={mechanism}
sasl.oauthbearer.jwks.endpoint.url=file://{certificates}/keys
sasl.oauthbearer.token.endpoint.url=file://{certificates}/token
listener.name.inside.plain.sasl.jaas.config={PLAIN} required username="broker" password="{BROKER_PASSWORD}" \\
  user_broker="{BROKER_PASSWORD}";
listener.name.clients.plain.sasl.jaas.config={PLAIN} required user_ann="{ANN_PASSWORD}";
listener.name.inside.ssl.client.auth=required
ssl.keystore.type=PKCS12
ssl.keystore.location={certificates}/broker.p12
ssl.keystore.password={STORE_PASSWORD}
ssl.truststore.type=PEM
ssl.truststore.location={certificates}/ca.pem
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ann;User:broker
zookeeper.connect={zookeeper}
zookeeper.session.timeout.ms=2000
zookeeper.ssl.client.enable=true
zookeeper.ssl.keystore.location={certificates}/broker.p12
zookeeper.ssl.keystore.password={STORE_PASSWORD}
zookeeper.ssl.truststore.location={certificates}/ca.pem
zookeeper.set.acl=true
java.security.auth.login.config={certificates}/client.conf
min.insync.replicas=2
offsets.topic.num.partitions=1
"""
        )

    def arguments(self) -> list[str]:
        return ["--config", str(self.directory / "server.properties")]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificates")
    authority = identity("authority")
    (folder / "ca.pem").write_text(authority.certificate_pem)
    for name, whose in (("server", "localhost"), ("broker", "localhost")):
        (folder / f"{name}.p12").write_bytes(identity(whose, authority).pkcs12(STORE_PASSWORD))
    entry = f"{AUTH}.DigestLoginModule required"
    (folder / "client.conf").write_text(
        f'Client {{ {entry} username="headrace" password="{ZK_PASSWORD}"; }};'
    )
    key = jwk.ECKey.generate_key("P-256", {"kid": "k", "alg": "ES256"})
    (folder / "keys").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
    now = int(time.time())
    claims = {"sub": "broker", "iat": now, "exp": now + 3600}
    (folder / "token").write_text(jwt.encode({"alg": "ES256", "kid": "k"}, claims, key))
    (folder / "server.conf").write_text(f'Server {{ {entry} user_headrace="{ZK_PASSWORD}"; }};')
    return folder


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory, certificates):
    tls_port = free_port()
    settings = f"""secureClientPort={tls_port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
authProvider.sasl={AUTH}.SASLAuthenticationProvider
ssl.keyStore.location={certificates}/server.p12
ssl.keyStore.password={STORE_PASSWORD}
ssl.trustStore.location={certificates}/ca.pem
"""
    options = [f"-Djava.security.auth.login.config={certificates}/server.conf"]
    folder = tmp_path_factory.mktemp("zookeeper")
    with running_zookeeper(folder, settings=settings, options=options) as server:
        server.tls_address = f"localhost:{tls_port}"
        yield server


@pytest.fixture(params=["PLAIN", "OAUTHBEARER"])
def mechanism(request):
    return request.param


@pytest.fixture
def brokers(zookeeper, certificates, tmp_path, mechanism):
    made = {}
    for number in (1, 2, 3):
        (tmp_path / str(number)).mkdir()
        place = f"{zookeeper.tls_address}/{mechanism}"
        made[number] = Member(tmp_path / str(number), number, certificates, place, mechanism)
    try:
        for each in made.values():
            each.start()
        yield made
    finally:
        codes = [each.stop() for each in made.values() if each.process is not None]
    assert codes == [0] * len(codes)
    for each in made.values():
        assert "Traceback" not in each.log()
        for secret in (STORE_PASSWORD, ZK_PASSWORD, BROKER_PASSWORD, ANN_PASSWORD):
            assert secret not in each.log()


def client(brokers, certificates, **more):
    return {
        "bootstrap.servers": ",".join(f"localhost:{each.port}" for each in brokers.values()),
        "broker.address.family": "v4",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(certificates / "ca.pem"),
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": ANN_PASSWORD,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def test_a_secured_cluster_survives_its_leader_and_refuses_unauthenticated_access(
    brokers, certificates, zookeeper, mechanism
):
    admin = AdminClient(client(brokers, certificates))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(admin.list_topics(timeout=DEADLINE_SECONDS).brokers) < 3:
        assert time.monotonic() < deadline, "all brokers are alive"
        time.sleep(0.1)
    admin.create_topics([NewTopic("t", 1, 3)])["t"].result(DEADLINE_SECONDS)
    refused: list[object] = []
    producer = Producer(client(brokers, certificates, acks="all", linger_ms=0))
    for number in range(VALUES):
        producer.produce(
            "t", b"%d" % number, on_delivery=lambda error, _: error is None or refused.append(error)
        )
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert not refused, "three replicas take it, of which two have to"
    partition = admin.list_topics("t", timeout=DEADLINE_SECONDS).topics["t"].partitions[0]
    assert len(partition.isrs) == 3
    brokers[partition.leader].kill()
    consumer = Consumer(client(brokers, certificates, group_id="g", auto_offset_reset="earliest"))
    consumer.assign([TopicPartition("t", 0, 0)])
    found: set[int] = set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(found) < VALUES:
        assert time.monotonic() < deadline, len(found)
        found.update(int(each.value()) for each in consumer.consume(500, 0.5) if each.error() is None)
    consumer.close()
    other = next(each for number, each in brokers.items() if number != partition.leader)
    for changes in (
        {"sasl.password": BROKER_PASSWORD, "sasl.username": "broker"},  # is known only on the inner listener
        {"security.protocol": "PLAINTEXT"},
        {"bootstrap.servers": f"localhost:{other.inside}"},  # wants a certificate
    ):
        stranger = AdminClient({**client({0: other}, certificates), **changes})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=3)
    looking = KazooClient(zookeeper.address)
    looking.start(DEADLINE_SECONDS)
    with pytest.raises(NoAuthError):
        looking.get_children(f"/{mechanism}")
    looking.stop()
    looking.close()
