"""Where OAUTHBEARER's tokens come from: a file, which somebody renews, or OAuth's client credentials grant (RFC 6749,
4.4). Both block, for a disk or a web server, so they are asked in a thread.

What is in a file is sent to brokers, so it is sent only if it is a token (RFC 6750), and no error shows it: whoever may
choose the file's name reads no other file by it (CVE-2025-27817).
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tablelayer.client.errors import AuthenticationFailed, ConnectionFailed, SettingsError

_TIMEOUT_S: Final = 10.0
_ANSWER_SIZE_MAX: Final = 1 << 20
_TOKEN_SIZE_MAX: Final = 64 << 10
_TOKEN: Final = re.compile(r"[-_~+/.A-Za-z0-9]+=*")
"""RFC 6750, 2.1."""
_FRESH_FOR: Final = 0.8
"""Of a token's lifetime: then the next connection asks for another. Kafka's sasl.login.refresh.window.factor."""


class TokenSource(Protocol):
    """`token` gives one that is valid now. Raises SettingsError, AuthenticationFailed, ConnectionFailed."""

    def token(self) -> str:
        """A token in its compact form."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Read at each connection."""

    path: Path

    def token(self) -> str:
        try:
            with self.path.open("rb") as file:
                text = file.read(_TOKEN_SIZE_MAX).decode("ascii").strip()
        except (OSError, UnicodeDecodeError):
            text = ""
        if _TOKEN.fullmatch(text) is None:
            raise SettingsError(f"sasl.oauthbearer.token.endpoint.url: no token can be read from {self.path}")
        return text


@dataclass(slots=True)
class ClientCredentials:
    """A token for an id and a secret from a server of tokens; kept while it is fresh. `tls` makes the context of https,
    otherwise it is the system's.
    """

    url: str
    client_id: str
    secret: str = field(repr=False)
    scope: str | None = None
    tls: Callable[[], ssl.SSLContext] | None = field(default=None, repr=False)
    _token: str = field(default="", repr=False)
    _fresh_until: float = 0.0

    def token(self) -> str:
        now = time.monotonic()
        if now >= self._fresh_until:
            self._token, lifetime_s = self._ask()
            self._fresh_until = now + lifetime_s * _FRESH_FOR
        return self._token

    def _ask(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"} | ({"scope": self.scope} if self.scope else {})
        pair = base64.b64encode(f"{self.client_id}:{self.secret}".encode()).decode()
        request = urllib.request.Request(
            self.url,
            urllib.parse.urlencode(form).encode(),
            {"Authorization": f"Basic {pair}", "Accept": "application/json"},
        )
        try:
            tls = self.tls() if self.tls is not None and self.url.lower().startswith("https:") else None
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=tls) as answer:
                told = json.loads(answer.read(_ANSWER_SIZE_MAX))
            return str(told["access_token"]), float(told.get("expires_in", 0))
        except urllib.error.HTTPError as error:
            error.close()
            raise AuthenticationFailed(
                f"{self.url} gives client {self.client_id} no token: HTTP {error.code}"
            ) from None
        except (ValueError, KeyError, TypeError):
            raise AuthenticationFailed(f"{self.url} answers with no token of OAuth") from None
        except OSError as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ConnectionFailed(f"cannot get a token from {self.url}: {reason}") from None
