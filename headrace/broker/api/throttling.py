"""Charge requests to their client's quotas, and throttle the connection (KIP-124, KIP-219).

The answer is sent without delay, with `throttle_time_ms` where its version has the field. Then nothing is read from the
connection until the time is over, whether or not the client waits by itself. The number is written into the encoded
answer, so that it also reaches the answers of repeated requests, which are made from templates.

Bytes are those of whole requests and answers of APIs that declare themselves as `charged`. The time of a request is the
time of the event loop's thread and of the worker threads that it uses (`broker.runtime.usage`). A client that is not
authenticated yet has no quotas.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Final

import msgspec

from headrace.broker.net.reply import Answer, Answerer, Part, Peer, Pending
from headrace.broker.requests.declaration import ApiDeclaration
from headrace.broker.runtime.usage import USAGE, Usage
from headrace.broker.security.quotas.model import Quota
from headrace.broker.security.quotas.quotas import Quotas
from headrace.protocol.fields import FORMATS

_START: Final = Struct(">hhih")
"""Beginning of a request: key, version, correlation id, length of the client id."""
_MILLISECONDS: Final = Struct(">i")
_MILLISECONDS_MAX: Final = 2**31 - 1
_PERCENT: Final = 100.0


class _Form(msgspec.Struct, frozen=True):
    """The charges of one version of one API, and the position of the throttle time in its answer."""

    charged: Quota | None
    position: int = -1
    """Position from the beginning of the first part; -1: elsewhere, or nowhere."""
    from_end: int = 0
    """Position from the end of the last part; 0: not there."""


class Throttling:
    """A layer between connections and the dispatcher while a quota is set."""

    def __init__(
        self, quotas: Quotas, declarations: Iterable[ApiDeclaration], clock: Callable[[], float]
    ) -> None:
        self.quotas = quotas
        self._clock = clock
        self._declarations = {each.key: each for each in declarations}
        self._forms: dict[tuple[int, int], _Form] = {}

    def answer(self, answerer: Answerer, peer: Peer, frame: bytes | memoryview) -> Answer:
        """Return the answerer's answer, and set how long the peer has to wait: `peer.throttle_seconds`."""
        session = peer.session
        if session is None or len(frame) < _START.size:
            return answerer(peer, frame)
        key, version, _, length = _START.unpack_from(frame)
        client_id = bytes(frame[_START.size : _START.size + max(length, 0)]).decode("utf-8", "replace")
        form = self._forms.get((key, version)) or self._form(key, version)
        user, size = session.principal.name, len(frame)
        usage = Usage()
        before = USAGE.set(usage)
        began = self._clock()
        try:
            answer = answerer(peer, frame)
            if isinstance(answer, Pending):
                answer.outcome = asyncio.ensure_future(answer.outcome)  # while its principal is known
        finally:
            USAGE.reset(before)
        busy = self._clock() - began
        if not isinstance(answer, Pending):
            return self._charge(peer, form, user, client_id, size, busy, answer, usage)
        finish = answer.finish

        def finished(outcome: asyncio.Future[Any]) -> list[Part] | None:
            began = self._clock()
            parts = finish(outcome)
            spent = busy + usage.seconds + self._clock() - began
            return self._charge(peer, form, user, client_id, size, spent, parts, usage)

        return Pending(answer.outcome, finished, answer.may_cancel)

    def _form(self, key: int, version: int) -> _Form:
        """Compute the form at the first request: most are never needed."""
        declaration = self._declarations.get(key)
        if declaration is None or not declaration.min_version <= version <= declaration.max_version:
            return _NOTHING
        form = self._forms[key, version] = _form(declaration, version)
        return form

    def _charge(
        self,
        peer: Peer,
        form: _Form,
        user: str,
        client_id: str,
        size: int,
        busy: float,
        parts: list[Part] | None,
        usage: Usage,
    ) -> list[Part] | None:
        quotas = self.quotas
        wait = quotas.used(Quota.REQUEST, user, client_id, busy * _PERCENT)
        if form.charged is Quota.PRODUCER:
            wait = max(wait, quotas.used(Quota.PRODUCER, user, client_id, size))
        elif form.charged is Quota.CONSUMER:
            wait = max(wait, quotas.used(Quota.CONSUMER, user, client_id, sum(map(_size, parts or ()))))
        elif form.charged is Quota.MUTATION and usage.mutations_exceeded:
            wait = max(wait, quotas.mutation_wait(user, client_id))
        if wait > 0.0:
            peer.throttle_seconds = wait
            if parts:
                _tell(parts, form, wait)
        return parts


_NOTHING: Final = _Form(None)
_FIELD: Final = "throttle_time_ms"


def _form(declaration: ApiDeclaration, version: int) -> _Form:
    response = declaration.response
    charged = declaration.charged
    header = response.header_version(version)
    is_flexible = response.is_flexible(version)
    fields = [
        (name, FORMATS.get(field.kind))
        for name, field in response.FIELDS.items()
        if version in field.versions and not field.is_tagged(version)
    ]
    position = 4 + header
    for name, fixed in fields:
        if name == _FIELD:
            return _Form(charged, position=position)
        if fixed is None:
            break
        position += fixed[1]
    if fields and fields[-1][0] == _FIELD:
        return _Form(charged, from_end=5 if is_flexible else 4)
    return _Form(charged)


def _size(part: Part) -> int:
    return len(part) if isinstance(part, bytes | bytearray | memoryview) else part.size


def _tell(parts: list[Part], form: _Form, wait: float) -> None:
    told = _MILLISECONDS.pack(min(round(wait * 1000), _MILLISECONDS_MAX))
    if form.position >= 0:
        place, position = 0, form.position
        while place + 1 < len(parts) and position >= _size(
            parts[place]
        ):  # the header may be a part of its own
            position -= _size(parts[place])
            place += 1
    elif form.from_end:
        place = len(parts) - 1
        last = parts[place]
        if not isinstance(last, bytes) or (form.from_end == 5 and last[-1:] != b"\0"):
            return  # tagged fields follow it
        position = len(last) - form.from_end
    else:
        return
    part = parts[place]
    if isinstance(part, bytes | bytearray) and 0 <= position <= len(part) - 4:
        parts[place] = b"".join((part[:position], told, part[position + 4 :]))
