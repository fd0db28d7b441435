"""Sources of OAUTHBEARER tokens: a file that another program renews, or OAuth's client credentials grant (RFC 6749,
4.4). Both block on a disk or a web server, so they run in a thread.

The content of a file is sent to brokers, so it is sent only if it is a token (RFC 6750), and no error shows it. A user
who may choose the file's name cannot read other files by it (CVE-2025-27817).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from headrace.protocol.security.oauth import (
    FRESH_FOR,
    TOKEN_BYTES_MAX,
    bearer_token,
    credentials_answer,
    credentials_request,
)
from headrace.tablelayer.client.errors import AuthenticationFailed, ConnectionFailed, SettingsError

_TIMEOUT_S: Final = 10.0
_ANSWER_SIZE_MAX: Final = 1 << 20


class TokenSource(Protocol):
    """Gives tokens that are valid now. Raises SettingsError, AuthenticationFailed, ConnectionFailed."""

    def token(self) -> str:
        """Return a token in its compact form."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file that is read at each connection."""

    path: Path

    def token(self) -> str:
        try:
            with self.path.open("rb") as file:
                return bearer_token(file.read(TOKEN_BYTES_MAX + 1))
        except (OSError, ValueError):
            raise SettingsError(
                f"sasl.oauthbearer.token.endpoint.url: {self.path} does not have a token that can be read"
            ) from None


@dataclass(slots=True)
class ClientCredentials:
    """Gets tokens for an id and a secret from a token server, and keeps one while it is fresh. `tls` makes the context
    of https; without it the system's is used.
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
            self._fresh_until = now + lifetime_s * FRESH_FOR
        return self._token

    def _ask(self) -> tuple[str, float]:
        import urllib.error  # imports http.client and email, which only this source needs
        import urllib.request

        form, headers = credentials_request(self.client_id, self.secret, self.scope)
        request = urllib.request.Request(self.url, form, dict(headers))
        try:
            tls = self.tls() if self.tls is not None and self.url.lower().startswith("https:") else None
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=tls) as answer:
                return credentials_answer(answer.read(_ANSWER_SIZE_MAX))
        except urllib.error.HTTPError as error:
            error.close()
            raise AuthenticationFailed(
                f"{self.url} refused a token to client {self.client_id}: HTTP {error.code}"
            ) from None
        except ValueError:
            raise AuthenticationFailed(f"the answer of {self.url} is not an OAuth token") from None
        except OSError as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise ConnectionFailed(f"cannot get a token from {self.url}: {reason}") from None
