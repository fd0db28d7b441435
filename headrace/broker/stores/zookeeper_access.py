"""A broker's access to ZooKeeper: with or without TLS, as which user, and with which ACLs of its nodes.

From Kafka's old configurations (`broker.configs.zookeeper`). A JAAS file has the user and the password, as for every
client of ZooKeeper:

    Client {
      org.apache.zookeeper.server.auth.DigestLoginModule required
      username="headrace" password="...";
    };

No error and no `repr` contains a password.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from kazoo.handlers.threading import SequentialThreadingHandler

from headrace.broker.configs.config_key import ConfigError
from headrace.protocol.security.jaas import JaasError, parse_jaas_file

if TYPE_CHECKING:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.security.tls.stores import Store

_LOGIN_FILE: Final = "java.security.auth.login.config"
_SECTION: Final = "zookeeper.sasl.clientconfig"
_SSL: Final = "zookeeper.ssl."
_MODULE: Final = "DigestLoginModule"
_TYPES: Final = {".p12": "PKCS12", ".pfx": "PKCS12", ".pem": "PEM", ".jks": "JKS"}


class ZooKeeperUser(msgspec.Struct, frozen=True):
    name: str
    password: str

    def __repr__(self) -> str:
        return f"ZooKeeperUser({self.name!r})"


class ZooKeeperAccess(msgspec.Struct, frozen=True):
    """`tls` None: without TLS. `user` None: without a user. `keeps_to_itself`: only the user has access to new
    nodes.
    """

    tls: ssl.SSLContext | None = None
    user: ZooKeeperUser | None = None
    keeps_to_itself: bool = False


def access_of(config: BrokerConfig) -> ZooKeeperAccess:
    """Read the files. Raises ConfigError."""
    user = _user(config)
    if config["zookeeper.set.acl"] and user is None:
        raise ConfigError(
            f"zookeeper.set.acl=true needs a user of ZooKeeper: set {_LOGIN_FILE} to a JAAS file with a "
            f"section {config[_SECTION]}"
        )
    return ZooKeeperAccess(_context(config), user, config["zookeeper.set.acl"])


def _user(config: BrokerConfig) -> ZooKeeperUser | None:
    path, section = config[_LOGIN_FILE], config[_SECTION]
    if path is None:
        return None
    try:
        sections = parse_jaas_file(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{_LOGIN_FILE}: {path} cannot be read: {error.strerror}") from None
    except (JaasError, UnicodeDecodeError) as error:
        raise ConfigError(f"{_LOGIN_FILE}: {path}: {error}") from None
    if section not in sections:
        raise ConfigError(
            f"{_LOGIN_FILE}: {path} has no section {section}; it has {', '.join(sections) or 'none'}"
        )
    entry = sections[section]
    if entry.module_name != _MODULE:
        raise ConfigError(
            f"{_LOGIN_FILE}: the section {section} of {path} names the login module {entry.module}; use "
            f"org.apache.zookeeper.server.auth.{_MODULE}"
        )
    name, password = entry.options.get("username"), entry.options.get("password")
    if not name or password is None:
        raise ConfigError(f"{_LOGIN_FILE}: the section {section} of {path} must have username and password")
    return ZooKeeperUser(name, password)


def _context(config: BrokerConfig) -> ssl.SSLContext | None:
    if not config[f"{_SSL}client.enable"]:
        return None
    from headrace.broker.configs.ciphers import choose_suites
    from headrace.broker.security.tls.client_tls import ClientTls

    context = ClientTls(_store(config, "truststore"), _store(config, "keystore")).context()
    context.check_hostname = config[f"{_SSL}endpoint.identification.algorithm"] != ""
    protocols = config[f"{_SSL}enabled.protocols"]
    if config[f"{_SSL}protocol"] == "TLSv1.2" or protocols == ["TLSv1.2"]:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    elif protocols == ["TLSv1.3"]:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    suites = choose_suites(config[f"{_SSL}cipher.suites"])
    if suites.older:
        context.set_ciphers(suites.older)
    return context


def _store(config: BrokerConfig, kind: str) -> Store:
    from headrace.broker.security.tls.stores import Store

    name = f"{_SSL}{kind}"
    location, password = config[f"{name}.location"], config[f"{name}.password"]
    given = config[f"{name}.type"]
    kind_of_file = given.upper() if given else _TYPES.get(Path(location or "").suffix.lower(), "JKS")
    is_pem = kind_of_file == "PEM"
    return Store(
        name,
        kind_of_file,
        location,
        None if is_pem else password,
        None,
        None,
        password if is_pem else None,
    )


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads and sockets, with a TLS context that was made before.

    It also reads answers that TLS has already decrypted. kazoo waits for its socket only, so they would stay unread
    until more data arrives.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context
        self.failure: OSError | None = None
        """The reason why the last attempt to connect failed."""

    def create_connection(
        self, address: tuple[str, int], hostname: str | None = None, timeout: float | None = None, **_: Any
    ) -> ssl.SSLSocket:
        try:
            sock = socket.create_connection(address, timeout)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                connected = self._context.wrap_socket(sock, server_hostname=hostname)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            self.failure = error
            raise
        self.failure = None
        return connected

    def select(
        self,
        readers: Sequence[Any],
        writers: Sequence[Any],
        others: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        decrypted = [each for each in readers if isinstance(each, ssl.SSLSocket) and each.pending()]
        found = super().select(readers, writers, others, 0 if decrypted else timeout)
        ready = [each for each in readers if each in decrypted or each in found[0]]
        return ready, found[1], found[2]
