"""Where OAUTHBEARER's tokens come from: a file, which somebody renews, or OAuth's client credentials grant (RFC 6749,
4.4). Both block, for a disk or a web server, so they are asked in a thread.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from tablelayer.client.errors import AuthenticationFailed, ConnectionFailed, SettingsError

_TIMEOUT_S: Final = 10.0
_ANSWER_SIZE_MAX: Final = 1 << 20
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
            return self.path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise SettingsError(
                f"sasl.oauthbearer.token.endpoint.url: no token can be read from {self.path}"
            ) from None


@dataclass(slots=True)
class ClientCredentials:
    """A token for an id and a secret from a server of tokens; kept while it is fresh."""

    url: str
    client_id: str
    secret: str = field(repr=False)
    scope: str | None = None
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
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
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
