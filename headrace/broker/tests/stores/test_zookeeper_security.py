"""Connections to ZooKeeper with TLS and a user, to its real server, and the errors of clients that it refuses."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionClosedError, NoAuthError
from kazoo.protocol.states import KeeperState

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.runtime.ports import CreateNode, SetNode, StoreUnavailableError, SystemClock
from headrace.broker.stores.configured import configured_store
from headrace.broker.stores.zookeeper import ZooKeeperStore
from headrace.broker.stores.zookeeper_access import TlsHandler, ZooKeeperAccess, ZooKeeperUser, access_of
from simulator.certificates import Identity, identity
from simulator.ports import free_port
from simulator.zookeeper import LONG_SESSIONS, ZooKeeperServer, running_zookeeper

USER, PASSWORD, STORE_PASSWORD = "headrace", "zk-secret", "store-secret"
SESSION_MS = 10_000
SASL = "org.apache.zookeeper.server.auth"


def jaas(path: Path, user: str = USER, password: str = PASSWORD, section: str = "Client") -> Path:
    path.write_text(
        f'{section} {{\n  {SASL}.DigestLoginModule required\n  username="{user}" password="{password}";\n}};\n'
    )
    return path


class Secured(msgspec.Struct):
    server: ZooKeeperServer
    tls_port: int
    folder: Path
    authority: Identity

    def config(self, **changes: str | None) -> BrokerConfig:
        """Return the configuration of an accepted broker; `_` stands for `.`."""
        settings: dict[str, str | None] = {
            "zookeeper.connect": f"localhost:{self.tls_port}/own",
            "zookeeper.session.timeout.ms": str(SESSION_MS),
            "zookeeper.connection.timeout.ms": "60000",
            "zookeeper.set.acl": "true",
            "zookeeper.ssl.client.enable": "true",
            "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
            "zookeeper.ssl.keystore.location": str(self.folder / "broker.p12"),
            "zookeeper.ssl.keystore.password": STORE_PASSWORD,
            "zookeeper.ssl.truststore.location": str(self.folder / "ca.pem"),
            "java.security.auth.login.config": str(self.folder / "client.conf"),
            **{name.replace("_", "."): value for name, value in changes.items()},
        }
        return BrokerConfig({name: value for name, value in settings.items() if value is not None})

    @asynccontextmanager
    async def store(self, **changes: str | None) -> AsyncIterator[ZooKeeperStore]:
        store = await configured_store(self.config(**changes), SystemClock())
        assert store is not None
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("zookeeper")
    authority = identity("authority")
    (folder / "ca.pem").write_text(authority.certificate_pem)
    (folder / "server.p12").write_bytes(identity("localhost", authority).pkcs12(STORE_PASSWORD))
    broker = identity("broker", authority)
    (folder / "broker.p12").write_bytes(broker.pkcs12(STORE_PASSWORD))
    broker.write(folder, "broker")
    jaas(folder / "client.conf")
    (folder / "server.conf").write_text(
        f'Server {{\n  {SASL}.DigestLoginModule required user_{USER}="{PASSWORD}" user_other="other-secret";\n}};\n'
    )
    tls_port = free_port()
    settings = f"""{LONG_SESSIONS}secureClientPort={tls_port}
secureClientPortAddress=127.0.0.1
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
authProvider.sasl={SASL}.SASLAuthenticationProvider
ssl.keyStore.location={folder}/server.p12
ssl.keyStore.password={STORE_PASSWORD}
ssl.trustStore.location={folder}/ca.pem
"""
    options = [f"-Djava.security.auth.login.config={folder}/server.conf"]
    with running_zookeeper(folder / "data", settings=settings, options=options) as server:
        yield Secured(server, tls_port, folder, authority)


def test_an_answer_that_tls_has_decrypted_already_is_not_left_behind(tmp_path: Path) -> None:
    authority = identity("authority")
    to_clients = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    to_clients.load_cert_chain(identity("localhost", authority).write(tmp_path, "server"))
    to_server = ssl.create_default_context(cadata=authority.certificate_pem)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with to_clients.wrap_socket(theirs, server_side=True) as server:
            server.sendall(b"first, second")
            server.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    with to_server.wrap_socket(ours, server_hostname="localhost") as client:
        assert client.recv(5) == b"first"
        ready, _, _ = TlsHandler(to_server).select([client], [], [], 0.05)
        assert ready == [client]
        assert client.recv(100) == b", second"
        client.sendall(b"x")
        thread.join()


@pytest.mark.parametrize("chroot", ["", "/own"])
async def test_a_refusal_directly_after_connecting_names_the_user(
    monkeypatch: pytest.MonkeyPatch, chroot: str
) -> None:
    def come_and_go(client: KazooClient) -> None:
        for state in (KeeperState.CONNECTED, KeeperState.AUTH_FAILED, KeeperState.CLOSED):
            client._session_callback(state)

    monkeypatch.setattr(KazooClient, "start_async", come_and_go)
    store = ZooKeeperStore(
        f"127.0.0.1:1{chroot}",
        clock=SystemClock(),
        access=ZooKeeperAccess(user=ZooKeeperUser("ann", "wr0ng")),
    )
    with pytest.raises(StoreUnavailableError, match="refuses the user ann"):
        await store.open()


@pytest.mark.parametrize("chroot", ["", "/own"])
async def test_a_refusal_of_the_first_request_names_the_user(
    monkeypatch: pytest.MonkeyPatch, chroot: str
) -> None:
    def come(client: KazooClient) -> None:
        client._session_callback(KeeperState.CONNECTED)

    def go(client: KazooClient, *_: object) -> None:
        client._session_callback(KeeperState.AUTH_FAILED)
        client._session_callback(KeeperState.CLOSED)
        raise ConnectionClosedError

    async def go_later(store: ZooKeeperStore) -> None:
        store._client._session_callback(KeeperState.AUTH_FAILED)
        store._client._session_callback(KeeperState.CLOSED)
        raise StoreUnavailableError("ZooKeeper is lost")

    monkeypatch.setattr(KazooClient, "start_async", come)
    monkeypatch.setattr(KazooClient, "ensure_path", go)
    monkeypatch.setattr(ZooKeeperStore, "_beat", go_later)
    store = ZooKeeperStore(
        f"127.0.0.1:1{chroot}",
        clock=SystemClock(),
        access=ZooKeeperAccess(user=ZooKeeperUser("ann", "wr0ng")),
    )
    with pytest.raises(StoreUnavailableError, match="refuses the user ann"):
        await store.open()


@pytest.mark.slow
@pytest.mark.xdist_group("secured-zookeeper")
class TestSecured:
    @pytest.mark.parametrize("keystore", ["PKCS12", "PEM"])
    async def test_the_store_works_the_same_over_tls(self, secured: Secured, keystore: str) -> None:
        by_pem: dict[str, str | None] = {
            "zookeeper_ssl_keystore_location": str(secured.folder / "broker.pem"),
            "zookeeper_ssl_keystore_password": None,
        }
        async with (
            secured.store() as store,
            secured.store(**by_pem if keystore == "PEM" else {}) as other,
        ):
            root = f"/{keystore}"
            told = asyncio.Event()
            await store.transact([CreateNode(root, b"0"), CreateNode(f"{root}/here", ephemeral=True)])
            other.watch(root, told.set)
            node = await other.get(root)
            assert node is not None
            await store.transact([SetNode(root, b"x" * 60_000, node.version)])
            async with asyncio.timeout(60):
                await told.wait()
            many = await asyncio.gather(*(other.get(root) for _ in range(20)))
            assert [each is not None and each.data for each in many] == [b"x" * 60_000] * 20
            assert await other.children(root) == ["here"]
            assert other.lease_end() > SystemClock().monotonic()

    async def test_zookeeper_nodes_are_readable_by_their_user_alone(self, secured: Secured) -> None:
        async with secured.store() as store:
            await store.transact([CreateNode("/secret", b"x")])

            def look() -> None:
                client = KazooClient(secured.server.address)
                client.start(60)
                try:
                    for path in ("/own/secret", "/own"):
                        with pytest.raises(NoAuthError):
                            client.get(path)
                    with pytest.raises(NoAuthError):
                        client.delete("/own/secret")
                finally:
                    client.stop()
                    client.close()

            await asyncio.to_thread(look)
        other = str(jaas(secured.folder / "other.conf", "other", "other-secret"))
        with pytest.raises(ConfigError, match="denies the user other access to /own"):
            async with secured.store(
                zookeeper_connect=f"{secured.server.address}/own",
                zookeeper_ssl_client_enable="false",  # its certificate would be accepted, since it is the broker's
                java_security_auth_login_config=other,
            ):
                pass

    async def test_zookeeper_nodes_without_acl_are_readable_by_all(self, secured: Secured) -> None:
        async with secured.store(
            zookeeper_set_acl="false", zookeeper_connect=self.at(secured, "/open")
        ) as store:
            await store.transact([CreateNode("/x", b"1")])
        in_the_clear: dict[str, str | None] = {
            "zookeeper_connect": f"{secured.server.address}/open",
            "zookeeper_ssl_client_enable": "false",
            "zookeeper_set_acl": "false",
            "java_security_auth_login_config": None,
        }
        async with secured.store(**in_the_clear) as store:
            node = await store.get("/x")
            assert node is not None
            assert node.data == b"1"

    @staticmethod
    def at(secured: Secured, path: str) -> str:
        return f"localhost:{secured.tls_port}{path}"

    @pytest.mark.parametrize(
        ("change", "complaint"),
        [
            (
                lambda one: {
                    "zookeeper_connection_timeout_ms": "60000",  # is refused at once
                    "java_security_auth_login_config": str(jaas(one.folder / "w.conf", password="wr0ng")),
                },
                "refuses the user headrace",
            ),
            (
                lambda one: {
                    "zookeeper_connection_timeout_ms": "10000",  # long enough for one attempt
                    "zookeeper_ssl_truststore_location": str(stranger(one.folder)),
                },
                "certificate verify failed",
            ),
            (
                lambda one: {"zookeeper_connect": f"127.0.0.2:{one.tls_port}"},
                "no ZooKeeper server answered",
            ),
            (
                lambda one: {
                    "zookeeper_ssl_keystore_location": None,
                    "zookeeper_ssl_keystore_password": None,
                },
                "no ZooKeeper server answered",
            ),
            (lambda one: {"zookeeper_connect": one.server.address}, "no ZooKeeper server answered"),
        ],
        ids=["password", "authority", "address", "certificate", "port"],
    )
    async def test_a_refused_zookeeper_login_names_the_reason(
        self, secured: Secured, change: Callable[[Secured], dict[str, str | None]], complaint: str
    ) -> None:
        with pytest.raises(ConfigError, match=complaint) as refused:
            async with secured.store(**{"zookeeper_connection_timeout_ms": "1000", **change(secured)}):
                pass
        assert PASSWORD not in str(refused.value)
        assert "wr0ng" not in str(refused.value)

    async def test_a_server_that_is_lost_while_it_lets_in_is_asked_again(self, secured: Secured) -> None:
        with Breaking(secured.server.port) as way:
            config = secured.config(
                zookeeper_connect=f"127.0.0.1:{way.port}", zookeeper_ssl_client_enable="false"
            )
            store = ZooKeeperStore(
                config["zookeeper.connect"],
                clock=SystemClock(),
                session_timeout_ms=SESSION_MS,
                access=access_of(config),
            )
            await store.open()
            try:
                session = store.session
                way.break_next()
                async with asyncio.timeout(90):
                    while True:
                        with contextlib.suppress(StoreUnavailableError):
                            await store.get("/")
                            if store.session not in (0, session):
                                break
                        await asyncio.sleep(0.02)
                assert way.broken == 1
            finally:
                await store.close()


def stranger(folder: Path) -> Path:
    path = folder / "stranger.pem"
    path.write_text(identity("stranger").certificate_pem)
    return path


class Breaking:
    """A relay to a ZooKeeper server that breaks once, on request, at the first message of SASL."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.broken = 0
        self._breaks = False
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Breaking:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._hang_up()
        for thread in self._threads:
            thread.join()

    def break_next(self) -> None:
        self._breaks = True
        self._hang_up()

    def _hang_up(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._to))
                self._open += [client, server]
                for one, other, is_client in ((client, server, True), (server, client, False)):
                    thread = threading.Thread(target=self._relay, args=(one, other, is_client))
                    self._threads.append(thread)
                    thread.start()

    def _relay(self, one: socket.socket, other: socket.socket, is_client: bool) -> None:
        with one, contextlib.suppress(OSError, struct.error):
            while data := one.recv(1 << 16):
                if is_client and self._breaks and struct.unpack(">i", data[8:12])[0] == 102:
                    self._breaks = False
                    self.broken += 1
                    break
                other.sendall(data)
            for each in (one, other):
                each.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("Server { a.DigestLoginModule required; };", "has no section Client; it has Server"),
        (
            "Client { com.sun.security.auth.module.Krb5LoginModule required; };",
            "use org.apache.zookeeper.server.auth.DigestLoginModule",
        ),
        ("Client { a.DigestLoginModule required username=x; };", "must have username and password"),
        ('Client { a.DigestLoginModule required password="s3cret";', "does not end with };"),
    ],
)
def test_a_file_of_jaas_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str | None, complaint: str
) -> None:
    path = tmp_path / "jaas.conf"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as refused:
        access_of(BrokerConfig({"java.security.auth.login.config": str(path)}))
    assert "s3cret" not in str(refused.value)


def test_zookeeper_acls_need_a_user(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"zookeeper\.set\.acl=true needs a user"):
        access_of(BrokerConfig({"zookeeper.set.acl": "true"}))
    own = jaas(tmp_path / "jaas.conf", section="Mine")
    settings = {"java.security.auth.login.config": str(own), "zookeeper.sasl.clientconfig": "Mine"}
    access = access_of(BrokerConfig({**settings, "zookeeper.set.acl": "true"}))
    assert access.keeps_to_itself
    assert access.tls is None
    assert PASSWORD not in repr(access)
