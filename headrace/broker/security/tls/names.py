"""The name of a certificate, as Kafka has it: its subject in RFC 2253's form.

`distinguished_name` prints as Java's `X500Principal.getName()` does, since ACLs are written with its output: the last
attribute first, short names for the nine of RFC 2253 and `OID=#DER` for all others.
"""

from __future__ import annotations

import re
from typing import Final

from cryptography import x509

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_ESCAPED: Final = re.compile(r'[,=+<>#;"\\]')
_ENDS: Final = re.compile(r"\A[ \r]+|[ \r]+\Z")


def subject_of(certificate: bytes) -> str:
    """Return the subject of a certificate (DER) that was verified already."""
    return distinguished_name(x509.load_der_x509_certificate(certificate).subject)


def distinguished_name(name: x509.Name) -> str:
    return ",".join("+".join(map(_attribute, rdn)) for rdn in reversed(list(name.rdns)))


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    oid = attribute.oid.dotted_string
    keyword = _KEYWORDS.get(oid)
    value = attribute.value
    if keyword is None or not isinstance(value, str):
        return f"{oid}=#{_value_der(attribute).hex()}"
    escaped = _ESCAPED.sub(lambda found: "\\" + found[0], value)
    return f"{keyword}={_ENDS.sub(_each_escaped, escaped)}"


def _each_escaped(found: re.Match[str]) -> str:
    return "".join("\\" + character for character in found[0])


def _value_der(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """Return the DER of an attribute's value, from SEQUENCE { SET { SEQUENCE { type, value } } }."""
    rest = x509.Name([attribute]).public_bytes()
    for _ in range(3):
        rest = _content(rest)[0]
    return _content(rest)[1]


def _content(der: bytes) -> tuple[bytes, bytes]:
    """Return the contents of the first element, and the bytes after it (X.690, 8.1.3)."""
    length, start = der[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[2:start], "big")
    return der[start : start + length], der[start + length :]
