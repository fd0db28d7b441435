"""The keys of an issuer, from a file or a URL (`sasl.oauthbearer.jwks.endpoint.url`), read again from time to time.

The keys that were read last count until newer ones are read: an issuer that is unreachable or faulty for a while locks
no client out. A token with an unknown key makes them be read at once, but not more often than the back-off allows,
because clients can invent keys. No error contains what was read (CVE-2025-27817), and an https: URL is not redirected
to another kind of URL.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote, urlsplit

import msgspec

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.security.sasl.jwt import Keys

logger = logging.getLogger("headrace.security")

_DOCUMENT_BYTES_MAX: Final = 1 << 20
_FETCH_SECONDS_MAX: Final = 10.0


class Pauses(msgspec.Struct, frozen=True):
    """Pauses between two reads, in seconds."""

    refresh: float = 3600.0
    """`sasl.oauthbearer.jwks.endpoint.refresh.ms`."""
    retry: float = 0.1
    """`sasl.oauthbearer.jwks.endpoint.retry.backoff.ms`: after a failure; it doubles."""
    retry_max: float = 10.0
    """`sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms`; also the shortest time before keys are read for a
    token.
    """


class _SameSchemeAlone(urllib.request.HTTPRedirectHandler):
    """Refuses redirections from https to http or to a file, as Java does."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            fp.close()
            raise ValueError(f"it redirects from {urlsplit(req.full_url).scheme}: to another kind of URL")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def read_document(
    url: str,
    context: Callable[[], ssl.SSLContext] | None = None,
    form: tuple[bytes, Mapping[str, str]] | None = None,
) -> bytes:
    """Return the contents of a file: or http(s): URL. `context` makes the TLS context of https; the default is the
    system's. `form` is posted to a server, with headers. Blocks.

    Raises OSError, ValueError, and the errors of `context`.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            document = file.read(_DOCUMENT_BYTES_MAX + 1)
    elif parts.scheme in ("http", "https"):
        tls = context() if context is not None and parts.scheme == "https" else None
        opener = urllib.request.build_opener(_SameSchemeAlone, urllib.request.HTTPSHandler(context=tls))
        try:
            data, headers = form or (None, {})
            request = urllib.request.Request(url, data, dict(headers))
            with opener.open(request, timeout=_FETCH_SECONDS_MAX) as answer:
                document = answer.read(_DOCUMENT_BYTES_MAX + 1)
        except urllib.error.HTTPError as error:
            error.close()
            raise
    else:
        raise ValueError("not a file:, http: or https: URL")
    if len(document) > _DOCUMENT_BYTES_MAX:
        raise ValueError(f"longer than {_DOCUMENT_BYTES_MAX} bytes")
    return bytes(document)


class JwksSource:
    """The keys from one place; see the module."""

    def __init__(
        self, url: str, pauses: Pauses, executor: Executor, read: Callable[[str], bytes] = read_document
    ) -> None:
        """Raises ConfigError for a file that cannot be used. A server need not answer yet."""
        self.keys: Keys | None = None
        self._url = url
        self._pauses = pauses
        self._executor = executor
        self._read = read
        self._wanted = asyncio.Event()
        scheme = urlsplit(url).scheme
        if scheme == "file":
            try:
                self.keys = Keys(read(url))
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"sasl.oauthbearer.jwks.endpoint.url: {url} cannot be used: {error}"
                ) from None
        elif scheme not in ("http", "https"):
            raise ConfigError(
                f"sasl.oauthbearer.jwks.endpoint.url: {url!r} is not a file:, http: or https: URL"
            )

    def current(self) -> Keys | None:
        return self.keys

    def expedite(self) -> None:
        """Read the keys soon, because a token names an unknown key."""
        self._wanted.set()

    async def run(self) -> None:
        """Read the keys repeatedly, until cancelled."""
        loop, pause = asyncio.get_running_loop(), self._pauses.retry
        while True:
            self._wanted.clear()  # a token that comes from here on may name a key that the following read does not find
            try:
                self.keys = await loop.run_in_executor(self._executor, lambda: Keys(self._read(self._url)))
            except (OSError, ValueError, HTTPException, ConfigError) as error:
                logger.warning("the keys of %s cannot be read: %s", self._url, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, self._pauses.retry_max)
                continue
            pause = self._pauses.retry
            await asyncio.sleep(min(self._pauses.retry_max, self._pauses.refresh))
            try:
                async with asyncio.timeout(max(0.0, self._pauses.refresh - self._pauses.retry_max)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
