"""The bearer tokens of this broker, for other brokers of its cluster. They come from a file, which another program
renews, or from an OAuth server (RFC 6749, 4.4), which issues them for an id and a secret. Both block, so they are read
in a thread.

No error shows what was read: a user who may choose the file's name must not read other files with it (CVE-2025-27817).
"""

from __future__ import annotations

from http.client import HTTPException
from typing import TYPE_CHECKING

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.security.sasl.jwks import read_document
from headrace.protocol.security.oauth import FRESH_FOR, bearer_token, credentials_answer, credentials_request

if TYPE_CHECKING:
    from headrace.broker.security.sasl.settings import TokenLogin


class BearerTokens:
    """The source of tokens; see the module. A server's token is used again while it is fresh."""

    def __init__(self, login: TokenLogin) -> None:
        self.login = login
        self._token = ""
        self._fresh_until = 0.0

    def check(self) -> None:
        """Raises ConfigError for a file or certificates that cannot be used. A server need not answer yet."""
        if self._is_file:
            try:
                self.token(0.0)
            except (OSError, ValueError) as error:
                raise ConfigError(f"sasl.oauthbearer.token.endpoint.url: {error}") from None
        elif self.login.url.lower().startswith("https:"):
            self.login.tls.context()

    def token(self, now: float) -> str:
        """Return a token that is valid `now`, in seconds of any one clock. Raises OSError, ValueError and ConfigError,
        without secrets in their texts.
        """
        if self._is_file:
            try:
                return bearer_token(read_document(self.login.url))
            except (OSError, ValueError):
                raise ValueError(f"no token can be read from {self.login.url}") from None
        if now >= self._fresh_until:
            self._token, lifetime_seconds = self._ask()
            self._fresh_until = now + lifetime_seconds * FRESH_FOR
        return self._token

    @property
    def _is_file(self) -> bool:
        return self.login.url.lower().startswith("file:")

    def _ask(self) -> tuple[str, float]:
        login = self.login
        form = credentials_request(login.client_id, login.secret, login.scope)
        try:
            return credentials_answer(read_document(login.url, login.tls.context, form))
        except (OSError, ValueError, HTTPException) as error:
            raise ConnectionError(f"{login.url} gives client {login.client_id} no token: {error}") from None
