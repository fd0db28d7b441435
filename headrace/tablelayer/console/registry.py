"""The schema registry in the console: subjects, versions, texts, compatibility, and schemas by their number.

It speaks the REST interface of Confluent's registry, which Karapace and Apicurio (below `/apis/ccompat/v7`) have, too.
All methods block.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from http import HTTPStatus
from typing import Annotated, Any, Final

from headrace.tablelayer.console.rest import Rest, RestService
from headrace.tablelayer.console.routes import RequestError, get

KEPT_MAX: Final = 1000
AWAY_SECONDS: Final = 10.0
"""Time for which a registry that did not answer is not asked for schemas again, so that pages stay fast."""
REFERENCES_MAX: Final = 64
AVRO: Final = "AVRO"


class Registry(RestService):
    """A schema registry, or none. Schemas never change and are kept."""

    absent = "the console has no schema registry: start it with --schema-registry URL"

    def __init__(self, rest: Rest | None) -> None:
        super().__init__(rest)
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, bool], dict[str, Any]] = OrderedDict()
        self._away: tuple[float, RequestError] | None = None

    def schema(self, number: int, *, serialized: bool = False) -> dict[str, Any]:
        """Return `schema`, `schemaType` and `references` of a number. Raises RequestError.

        With `serialized`, a registry that can do so returns a Protobuf schema as a FileDescriptorProto in base64.
        """
        key = number, serialized
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            away = self._away
        if away is not None and time.monotonic() < away[0]:
            raise away[1]
        try:
            found = self._asked.get_object(
                "schemas", "ids", number, query="?format=serialized" if serialized else ""
            )
        except RequestError as error:
            if error.status is HTTPStatus.BAD_GATEWAY:
                self._away = time.monotonic() + AWAY_SECONDS, error
            raise
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)
        return found

    def referenced(self, schema: dict[str, Any], *, serialized: bool = False) -> dict[str, dict[str, Any]]:
        """Return the schemas that a schema refers to, with their own, by name; those without references first.

        Raises RequestError.
        """
        found: dict[str, dict[str, Any]] = {}
        self._add(schema, found, serialized, 0)
        return found

    def _add(
        self, schema: dict[str, Any], found: dict[str, dict[str, Any]], serialized: bool, depth: int
    ) -> None:
        for each in schema.get("references") or ():
            if each["name"] in found:
                continue
            if len(found) >= REFERENCES_MAX or depth >= REFERENCES_MAX:
                raise RequestError(f"the schema refers to more than {REFERENCES_MAX} others")
            query = "?format=serialized" if serialized else ""
            inner = self._asked.get_object(
                "subjects", each["subject"], "versions", each["version"], query=query
            )
            self._add(inner, found, serialized, depth + 1)
            found[each["name"]] = inner

    # -- the pages -----------------------------------------------------------------------------------------

    @get("/api/schemas")
    def subjects(self) -> dict[str, Any]:
        """The schema registry: its subjects, and the compatibility that holds for those without their own."""
        subjects = self._asked.get("subjects")
        if not isinstance(subjects, list):
            raise RequestError("the schema registry lists no subjects", HTTPStatus.BAD_GATEWAY)
        return {
            "url": self._asked.url,
            "subjects": sorted(map(str, subjects)),
            "compatibility": self._level(),
        }

    @get("/api/schemas/{subject}")
    def subject(
        self,
        subject: str,
        version: Annotated[int | None, "The version; the latest if it is left out."] = None,
    ) -> dict[str, Any]:
        """A subject's versions and compatibility, and one version with the text of its schema."""
        versions = self._asked.get("subjects", subject, "versions")
        found = self._asked.get_object(
            "subjects", subject, "versions", "latest" if version is None else version
        )
        return {
            "subject": subject,
            "versions": versions,
            "compatibility": self._level(subject),
            "version": found.get("version"),
            "id": found.get("id"),
            "type": found.get("schemaType") or AVRO,
            "schema": found.get("schema"),
            "references": found.get("references") or [],
        }

    def _level(self, subject: str | None = None) -> str | None:
        """Return the compatibility of a subject, or of the registry; None if the registry does not tell."""
        try:
            if subject is None:
                found = self._asked.get_object("config")
            else:
                found = self._asked.get_object("config", subject, query="?defaultToGlobal=true")
        except RequestError:
            return None
        return found.get("compatibilityLevel") or found.get("compatibility")
