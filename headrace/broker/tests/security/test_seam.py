"""The dispatcher answers no API without the rights of its declaration, over the real registry."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.api.dispatch import Dispatcher, failed_response
from headrace.broker.net.reply import CloseConnection, Peer
from headrace.broker.requests.declaration import ApiDeclaration
from headrace.broker.runtime.slices import finish
from headrace.broker.security.principal import ANONYMOUS, Principal, Session
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType, denied
from headrace.protocol.errors import ErrorCode
from headrace.protocol.headers import RequestHeader, encode_request_header
from headrace.tablelayer.server.extension import TableExtension
from simulator.direct import DirectBroker, direct_broker

PUBLIC_KEYS = {17, 18, 36}
ANN = Session(Principal("User", "ann"), "L", "PLAIN")


class Nobody:
    """An authorizer that refuses everything, and remembers the questions."""

    is_open = False
    version = 1

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def may(self, session, host, operation, resource_type, name) -> bool:
        self.asked.append((session, host, operation, resource_type, name))
        return False

    def may_any(self, session, host, operation, resource_type) -> bool:
        return False

    def allowed(self, session, host, operation, resource_type) -> tuple[()]:
        return ()


def declared(broker: DirectBroker) -> list[ApiDeclaration]:
    return list(broker.broker.dispatcher.declarations)


def frame_of(declaration: ApiDeclaration) -> bytes:
    version = declaration.max_version
    header = RequestHeader(declaration.key, version, 7, "c")
    return encode_request_header(
        header, declaration.request.header_version(version)
    ) + declaration.request().encode(version)


async def test_only_authentication_apis_are_public(tmp_path: Path) -> None:
    async with direct_broker(tmp_path, extensions=[TableExtension()]) as broker:
        public = {declaration.key for declaration in declared(broker) if declaration.authorize.is_public}
        assert public == PUBLIC_KEYS
        assert len(declared(broker)) > 80
        assert all(
            declaration.authorize.rights for declaration in declared(broker) if declaration.key not in public
        )


async def test_before_authentication_every_other_api_closes_the_connection(tmp_path: Path) -> None:
    async with direct_broker(tmp_path, extensions=[TableExtension()]) as broker:
        for declaration in declared(broker):
            peer = Peer(9, "10.0.0.9", 1, "L", None)
            if declaration.key in PUBLIC_KEYS:
                assert broker.broker.dispatcher(peer, frame_of(declaration))
            else:
                with pytest.raises(CloseConnection, match=f"API key {declaration.key} before authentication"):
                    broker.broker.dispatcher(peer, frame_of(declaration))
        for frame in (b"", b"\0", b"\x7f\xff" + bytes(20)):
            with pytest.raises(CloseConnection):
                broker.broker.dispatcher(Peer(9, "10.0.0.9", 1, "L", None), frame)


async def test_remembered_answers_need_authentication(tmp_path: Path) -> None:
    class Memory:
        def answer(self, frame: bytes) -> None:
            raise AssertionError("answered from memory")

    async with direct_broker(tmp_path) as broker:
        produce = next(declaration for declaration in declared(broker) if declaration.key == 0)
        with pytest.raises(CloseConnection, match="before authentication"):
            broker.broker.dispatcher(Peer(9, "10.0.0.9", 1, "L", None, Memory()), frame_of(produce))


async def test_rights_over_the_cluster_are_asked_before_the_handler(tmp_path: Path) -> None:
    """Each answer has a place for the refusal, and no handler has seen the request."""
    async with direct_broker(tmp_path, extensions=[TableExtension()]) as broker:
        whole = [each for each in declared(broker) if each.authorize.of_cluster is not None]
        assert len(whole) >= 15
        for declaration in whole:
            nobody = Nobody()
            dispatcher = Dispatcher([declaration], authorizer=nobody)
            answer = dispatcher(Peer(9, "10.0.0.9", 1, "L", ANN), frame_of(declaration))
            assert isinstance(answer, list)
            operation = declaration.authorize.of_cluster
            assert nobody.asked == [(ANN, "10.0.0.9", operation, ResourceType.CLUSTER, CLUSTER_NAME)]
            error = denied(ResourceType.CLUSTER)
            assert error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            expected = finish(
                failed_response(declaration, declaration.request(), declaration.max_version, error)
            )
            assert b"".join(answer).endswith(b"".join(expected.encode_parts(declaration.max_version)))


async def test_handlers_get_the_session_of_the_client(tmp_path: Path) -> None:
    seen = []
    async with direct_broker(tmp_path) as broker:
        metadata = next(declaration for declaration in declared(broker) if declaration.key == 3)

        def look(context, request):
            seen.append(
                (
                    str(context.principal),
                    context.session.mechanism,
                    context.may(Operation.READ, ResourceType.TOPIC, "t"),
                )
            )
            return metadata.response()

        watched = ApiDeclaration(metadata.request, metadata.response, look, metadata.authorize)
        Dispatcher([watched], authorizer=Nobody())(Peer(9, "10.0.0.9", 1, "L", ANN), frame_of(metadata))
        Dispatcher([watched])(Peer(9, "10.0.0.9", 1, "L", Session(ANONYMOUS, "L")), frame_of(metadata))
    assert seen == [("User:ann", "PLAIN", False), ("User:ANONYMOUS", "", True)]


def test_a_requirement_names_an_operation() -> None:
    with pytest.raises(ValueError, match="at least one operation"):
        within()
    assert within(topic=Operation.READ, group=(Operation.READ, Operation.DESCRIBE)).rights == (
        (Operation.READ, ResourceType.TOPIC),
        (Operation.READ, ResourceType.GROUP),
        (Operation.DESCRIBE, ResourceType.GROUP),
    )
