"""The certificates of all listeners with TLS, which change while the broker runs.

Files are checked every few seconds, and at once after SIGHUP or a change of their configurations. A thread reads them.
If all are valid, they replace the previous ones; otherwise those stay, and the reason is logged once for each state of
the files.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from typing import Final, TypeVar, TypeVarTuple

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.listeners import Listener
from headrace.broker.net.tls import TlsError, TlsStream
from headrace.broker.security.principal import Principal
from headrace.broker.security.tls import kernel
from headrace.broker.security.tls.listener_tls import LoadedTls, TlsSettings, load_tls, settings_of, stamps_of
from headrace.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger("headrace.security")

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

LOOK_SECONDS: Final = 3.0


class ListenerTls:
    """The TLS of one listener, for its new connections (`net.tls_handshake.Encryption`)."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.loaded: LoadedTls | None = None
        self.refused: tuple[TlsSettings, tuple[tuple[int, ...], ...]] | None = None
        """The settings and file stamps that could not be used last."""

    @property
    def context(self) -> ssl.SSLContext:
        return self._loaded().context

    def admit(self, stream: TlsStream) -> Principal:
        loaded = self._loaded()
        if stream.version == "TLSv1.3" and stream.cipher not in loaded.newer_suites:
            raise TlsError(f"its cipher suite {stream.cipher} is not one of ssl.cipher.suites")
        principal = loaded.principal(stream.peer_certificate())
        if principal is None:
            raise TlsError("no rule of ssl.principal.mapping.rules matches its certificate's name")
        return principal

    def _loaded(self) -> LoadedTls:
        if self.loaded is None:
            raise RuntimeError("`Certificates.load` must be called before connections are accepted")
        return self.loaded


class Certificates:
    """The certificates of all listeners with TLS; see the module."""

    def __init__(self, config: BrokerConfig, listeners: Iterable[Listener], executor: Executor) -> None:
        self._config = config
        self._executor = executor
        self._of: dict[str, ListenerTls] = {each.name: ListenerTls(each) for each in listeners}
        self._change = asyncio.Lock()

    def of(self, listener: Listener) -> ListenerTls:
        return self._of[listener.name]

    async def load(self) -> None:
        """Load them before connections are accepted. Raises ConfigError."""
        for each in self._of.values():
            each.loaded = await self._load(settings_of(self._config, each.listener), None)
        logger.info("TLS is provided by %s", await self._in_thread(kernel.told))

    async def check(self, config: BrokerConfig, names: Collection[str]) -> None:
        """Check that new values of the TLS configurations `names` can be used. Raises KafkaError."""
        if not any(".ssl." in f".{name}" for name in names):
            return
        for each in self._of.values():
            try:
                settings = settings_of(config, each.listener)
                if each.loaded is None or not await self._is_same(settings, each.loaded):
                    await self._load(settings, each.loaded)
            except ConfigError as error:
                raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from None

    async def reload(self) -> None:
        """Read changed files again."""
        async with self._change:
            for each in self._of.values():
                await self._renew(each)

    async def run(self) -> None:
        """Check for changed files until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.reload()

    async def _renew(self, one: ListenerTls) -> None:
        loaded = one.loaded
        settings = settings_of(self._config, one.listener)
        if loaded is None or await self._is_same(settings, loaded):
            return
        state = settings, await self._stamps(settings)
        if state == one.refused:
            return
        try:
            one.loaded = await self._load(settings, loaded)
        except ConfigError as error:
            one.refused = state
            logger.error("the new certificates cannot be used, so the present ones stay in use: %s", error)
        else:
            one.refused = None
            logger.info("listener %s: using new certificates for new connections", one.listener.name)

    async def _is_same(self, settings: TlsSettings, loaded: LoadedTls) -> bool:
        return settings == loaded.settings and await self._stamps(settings) == loaded.stamps

    async def _stamps(self, settings: TlsSettings) -> tuple[tuple[int, ...], ...]:
        return await self._in_thread(stamps_of, settings.files)

    async def _load(self, settings: TlsSettings, before: LoadedTls | None) -> LoadedTls:
        return await self._in_thread(load_tls, settings, before)

    async def _in_thread(self, work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
