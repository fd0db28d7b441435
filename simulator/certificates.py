"""Certificates for tests: an authority and its certificates as PEM and PKCS12, each made in a millisecond."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
_DAY = datetime.timedelta(days=1)
_LOCAL: tuple[x509.GeneralName, ...] = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")),
)


class Identity:
    """A key and its certificate. `issuer` is None for a self-signed one."""

    def __init__(self, certificate: x509.Certificate, key: Key, issuer: Identity | None) -> None:
        self.certificate = certificate
        self.key = key
        self.issuer = issuer

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def key_pem(self, password: str | None = None) -> str:
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
        ).decode()

    def pkcs12(self, password: str) -> bytes:
        issuers = [] if self.issuer is None else [self.issuer.certificate]
        return pkcs12.serialize_key_and_certificates(
            b"own",
            self.key,
            self.certificate,
            issuers,
            serialization.BestAvailableEncryption(password.encode()),
        )

    def write(self, folder: Path, name: str) -> Path:
        """Write key and certificate into one PEM file."""
        path = folder / f"{name}.pem"
        path.write_text(self.key_pem() + self.certificate_pem)
        return path


def identity(
    name: str | x509.Name,
    issuer: Identity | None = None,
    *,
    rsa_bits: int = 0,
    days: float = 30,
    names: tuple[x509.GeneralName, ...] = _LOCAL,
) -> Identity:
    """Create a P-256 key, or an RSA key of that number of bits, and its certificate. Without an issuer it is an
    authority.

    `days` is the time until it expires; negative if it has expired.
    """
    key: Key = (
        rsa.generate_private_key(65537, rsa_bits) if rsa_bits else ec.generate_private_key(ec.SECP256R1())
    )
    subject = (
        name if isinstance(name, x509.Name) else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    now = datetime.datetime.now(datetime.UTC)
    signer = key if issuer is None else issuer.key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 60 * _DAY)
        .not_valid_after(now + days * _DAY)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    if issuer is not None and names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Identity(builder.sign(signer, hashes.SHA256()), key, issuer)


def trusted_pkcs12(certificates: list[x509.Certificate], password: str) -> bytes:
    """Write a truststore as keytool makes it: certificates without keys."""
    return pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(each, b"ca%d" % number) for number, each in enumerate(certificates)],
        serialization.BestAvailableEncryption(password.encode()),
    )
