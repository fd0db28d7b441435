"""OAuth messages, without I/O: bearer tokens (RFC 6750) and the client credentials grant (RFC 6749, 4.4).

The grant gives a token for a client id and a secret. No error shows a token, a secret or other received text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

TOKEN_BYTES_MAX: Final = 64 << 10
FRESH_FOR: Final = 0.8
"""Fraction of a token's lifetime after which the next connection asks for a new one.

Kafka's sasl.login.refresh.window.factor.
"""
_TOKEN: Final = re.compile(r"[-_~+/.A-Za-z0-9]+=*")
"""RFC 6750, 2.1."""


def bearer_token(document: bytes) -> str:
    """Return the token that is the whole content of a file. Raises ValueError."""
    text = document.decode("ascii", "replace").strip()
    if len(document) > TOKEN_BYTES_MAX or _TOKEN.fullmatch(text) is None:
        raise ValueError("not a bearer token")
    return text


def credentials_request(
    client_id: str, secret: str, scope: str | None = None
) -> tuple[bytes, Mapping[str, str]]:
    """Return the form to post for a token, and the request's headers."""
    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    pair = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
    return urlencode(form).encode(), {"Authorization": f"Basic {pair}", "Accept": "application/json"}


def credentials_answer(document: bytes) -> tuple[str, float]:
    """Return the token and its lifetime in seconds, 0 if the answer has none. Raises ValueError."""
    try:
        told = json.loads(document)
        return str(told["access_token"]), float(told.get("expires_in", 0))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("no token of OAuth") from None
