"""What one connection asks again and again with other records, answered without decoding and encoding it.

The first request of a form goes the whole way and leaves a template (`protocol.template`) and a `Repeat` of its
handler. Those that follow with the same bytes are given to the repeat as they are; whatever it does not answer
goes the whole way again. So the handler alone says what a request means, and alone reports what is wrong.

A few dozen forms are remembered for a connection that has such requests, nothing for others; and nothing of what
somebody else has asked on it, before it was authenticated again.
"""

from __future__ import annotations

import logging
from struct import Struct
from typing import Final

from headrace.broker.net.faults import Fault
from headrace.broker.net.reply import CloseConnection, Part
from headrace.broker.requests.declaration import Repeat
from headrace.broker.security.principal import Session
from headrace.protocol.errors import KafkaError
from headrace.protocol.schema import ApiMessage
from headrace.protocol.template import CORRELATION_END, NumbersTemplate, RecordsTemplate

logger = logging.getLogger("headrace.api")

FORMS_MAX: Final = 32
_START: Final = Struct(">4si")

Form = tuple[RecordsTemplate, NumbersTemplate, Repeat]


class Repeats:
    """The forms of one connection."""

    __slots__ = ("_forms", "_sizes", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self._forms: dict[bytes, Form] = {}
        self._sizes: tuple[int, ...] = ()  # where prefixes end, as a rule one value

    def answer(self, frame: bytes) -> list[Part] | None:
        """The answer, or None if the frame has to go the whole way. Raises CloseConnection."""
        for end in self._sizes:
            form = self._forms.get(frame[CORRELATION_END:end])
            if form is None:
                continue
            template, response, repeat = form
            key, correlation_id = _START.unpack_from(frame)
            if key != template.key:
                continue
            records = template.records(frame)
            if records is None:
                return None
            try:
                numbers = repeat.handle(records)
            except KafkaError:
                return None  # nothing was changed; the handler will say what is wrong
            except Exception as error:
                logger.error("a repeated request failed", exc_info=error)
                raise CloseConnection("the broker failed; its log says how", fault=Fault.SERVER) from None
            if numbers is None:
                return None
            return [response.encode(correlation_id, numbers)]
        return None

    def learn(
        self, frame: bytes, body_position: int, request: ApiMessage, version: int, repeat: Repeat
    ) -> None:
        """Answer requests of this form by `repeat` from now on, if it is a form at all."""
        template = RecordsTemplate.of(frame, body_position, request, version)
        response = NumbersTemplate.of(repeat.response, version, repeat.placeholders)
        if template is None or response is None:
            return
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        self._forms[template.prefix] = template, response, repeat
        self._sizes = tuple({form[0].prefix_end for form in self._forms.values()})
