"""The identities of the demo's programs: none, or users with passwords over TLS (`make demo SECURE=1`)."""

from __future__ import annotations

import datetime
import ipaddress
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from headrace.tablelayer.client.security.settings import ConnectionSettings

ADMIN = "admin"
MECHANISM = "SCRAM-SHA-512"


class Access:
    """Access without users and rights."""

    is_secured = False

    def server_file(self, address: str, number: int | None = None) -> Path | None:
        """Configurations for `headrace serve --config`, for one server or for the broker of this number."""
        return None

    def client_file(self, user: str) -> Path | None:
        """Properties for `--config` of every other command."""
        return None

    def librdkafka(self, user: str) -> dict[str, str]:
        """Return settings of security for librdkafka."""
        return {}

    def spark(self, user: str) -> dict[str, str]:
        """Options of Spark's Kafka source and sink."""
        return {}

    def settings(self, address: str, user: str) -> ConnectionSettings:
        """Return the connection settings of a client, a lookup join or a union read."""
        return ConnectionSettings.make(address, self.librdkafka(user))


class SecuredAccess(Access):
    """One SASL_SSL listener; users have the passwords made here, in files that only their owner can read."""

    is_secured = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._passwords: dict[str, str] = {}
        self.authority, server = _certificates(folder)
        self._server = server

    def password(self, user: str) -> str:
        return self._passwords.setdefault(user, secrets.token_urlsafe(18))

    def server_file(self, address: str, number: int | None = None) -> Path:
        admin = self.password(ADMIN)
        users, among_brokers = f'user_{ADMIN}="{admin}"', {}
        if number is not None:  # brokers ask each other as the administrator
            users = f'username="{ADMIN}" password="{admin}" {users}'
            among_brokers = {
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.authority),
            }
        return self._write(
            "server.properties" if number is None else f"broker{number}.properties",
            {
                **among_brokers,
                "listeners": f"SASL_SSL://{address}",
                "sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}",
                "listener.name.sasl_ssl.plain.sasl.jaas.config": (
                    f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
                ),
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self._server),
                "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
                "super.users": f"User:{ADMIN}",
            },
        )

    def client_file(self, user: str) -> Path:
        return self._write(f"{user}.properties", self.librdkafka(user))

    def librdkafka(self, user: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN" if user == ADMIN else MECHANISM,
            "sasl.username": user,
            "sasl.password": self.password(user),
            "ssl.ca.location": str(self.authority),
        }

    def spark(self, user: str) -> dict[str, str]:
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        return {
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": MECHANISM,
            "kafka.sasl.jaas.config": f'{module} required username="{user}" password="{self.password(user)}";',
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(self.authority),
        }

    def secret_file(self, name: str, lines: Iterable[str]) -> Path:
        """A file that only its owner can read."""
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def _write(self, name: str, properties: Mapping[str, str]) -> Path:
        return self.secret_file(name, (f"{key}={value}" for key, value in properties.items()))


def _certificates(folder: Path) -> tuple[Path, Path]:
    """An authority, and a server's key and certificate signed by it, as PEM."""
    now = datetime.datetime.now(datetime.UTC)
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name, server_name = (
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("demo authority", "localhost")
    )

    def certificate(subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> str:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority_name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if not is_authority:
            local = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(local), critical=False)
        signed = builder.sign(authority_key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM).decode()

    authority, server = folder / "ca.pem", folder / "server.pem"
    authority.write_text(certificate(authority_name, authority_key, is_authority=True))
    server.touch(mode=0o600)
    server.write_text(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        + certificate(server_name, server_key, is_authority=False)
    )
    return authority, server
