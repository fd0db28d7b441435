"""Answer requests that a connection repeats with other records, without decoding and encoding them.

The first request of a form is dispatched normally and leaves a template (`protocol.template`) and a `Repeat` of its
handler. Later ones with the same bytes go to the repeat; a request that it does not answer is dispatched normally. So
only the handler interprets requests and reports errors.

At most a few dozen forms are remembered per connection. They are forgotten when it authenticates again.
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
        self._sizes: tuple[int, ...] = ()  # ends of prefixes, usually one value

    def answer(self, frame: bytes) -> list[Part] | None:
        """Return the answer, or None if the frame must be dispatched normally. Raises CloseConnection."""
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
                return None  # nothing was changed; the handler reports the error
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
        """Answer requests of this form by `repeat` from now on, if the request has a form."""
        template = RecordsTemplate.of(frame, body_position, request, version)
        response = NumbersTemplate.of(repeat.response, version, repeat.placeholders)
        if template is None or response is None:
            return
        if len(self._forms) >= FORMS_MAX:
            self._forms.clear()
        self._forms[template.prefix] = template, response, repeat
        self._sizes = tuple({form[0].prefix_end for form in self._forms.values()})
