"""The states of a connection that authenticates, through the SASL handler and the real APIs behind it (KIP-43, 152,
368).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.broker.api.sasl import SaslDoor
from headrace.broker.net.reply import CloseConnection, Peer, Pending
from headrace.broker.security.principal import Principal
from headrace.broker.security.sasl.authentication import Authentication, Mechanism, Refusal, State
from headrace.broker.security.sasl.exchange import Identity
from headrace.broker.security.sasl.plain import PlainExchange, PlainUsers
from headrace.broker.tests.security.sasl_clients import ScramClient, credential, exchange
from headrace.protocol.errors import ErrorCode
from headrace.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.protocol.schema import ApiMessage
from simulator.direct import direct_broker

ANN = b"\0ann\0secret-1"
PLAIN_USERS = PlainUsers({"ann": "secret-1", "bob": "secret-2"})
OFFERED = ["PLAIN", "SCRAM-SHA-256", "ENDS", "BROKEN"]
SCRAM_USERS = {"ann": credential("secret-1")}
RESPONSES: dict[type[ApiMessage], type[ApiMessage]] = {
    ApiVersionsRequest: ApiVersionsResponse,
    MetadataRequest: MetadataResponse,
    SaslHandshakeRequest: SaslHandshakeResponse,
    SaslAuthenticateRequest: SaslAuthenticateResponse,
}


class Time:
    """The loop's time in seconds; the wall clock is the same number."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ms(self) -> int:
        return int(self.now * 1000)


class Client:
    """A connection to a listener with SASL, without a socket."""

    def __init__(self, door: SaslDoor, time: Time, delays: list[float]) -> None:
        self.door = door
        self.time = time
        self.delays = delays
        self.peer = Peer(7, "10.0.0.7", 1, "SASL", None)

    async def send(self, request: ApiMessage, version: int | None = None) -> Any:
        """Return the response. Raise CloseConnection, with the decoded answer in `args`, if the connection is
        closed.
        """
        api_version = type(request).MAX_VERSION if version is None else version
        header = RequestHeader(request.API_KEY, api_version, 5, "c")
        frame = encode_request_header(header, request.header_version(api_version)) + request.encode(
            api_version
        )
        response = RESPONSES[type(request)]

        def decoded(answer: bytes) -> ApiMessage:
            correlation_id, position = decode_response_header(answer, response.header_version(api_version))
            assert correlation_id == 5
            return response.decode(answer, api_version, None, position)

        try:
            answer = await self.raw(frame)
        except CloseConnection as reason:
            told = reason.answer and decoded(b"".join(bytes(part) for part in reason.answer))  # type: ignore[arg-type]
            raise HungUp(str(reason), told) from None
        assert answer is not None
        return decoded(answer)

    async def raw(self, frame: bytes) -> bytes | None:
        answer = self.door(self.peer, frame)
        if isinstance(answer, Pending):
            outcome = asyncio.ensure_future(answer.outcome)
            await asyncio.wait([outcome])
            answer = answer.finish(outcome)
        return None if answer is None else b"".join(bytes(part) for part in answer)  # type: ignore[arg-type]

    async def shake(self, mechanism: str = "PLAIN", version: int = 1) -> SaslHandshakeResponse:
        response: SaslHandshakeResponse = await self.send(SaslHandshakeRequest(mechanism=mechanism), version)
        return response

    async def authenticate(self, message: bytes, version: int = 2) -> SaslAuthenticateResponse:
        response: SaslAuthenticateResponse = await self.send(
            SaslAuthenticateRequest(auth_bytes=message), version
        )
        return response

    async def is_served(self) -> bool:
        try:
            await self.send(MetadataRequest(topics=[]))
        except HungUp:
            return False
        return True


class Broken:
    identity: Identity | None = None

    def answer(self, message: bytes) -> bytes:
        raise ZeroDivisionError


class HungUp(Exception):  # noqa: N818
    def __init__(self, reason: str, told: Any) -> None:
        super().__init__(reason)
        self.told = told


class Ends:
    """A mechanism whose credentials end, for any user name."""

    def __init__(self, time: Time, seconds: float) -> None:
        self.identity: Identity | None = None
        self._ends_ms = time.time_ms() + int(seconds * 1000)

    def answer(self, message: bytes) -> bytes:
        self.identity = Identity(message.decode(), self._ends_ms)
        return b""


@asynccontextmanager
async def clients(tmp_path: Path, session_ms: int = 0) -> AsyncIterator[Any]:
    """Return a function that connects."""
    time, delays = Time(), []

    def delay() -> float:
        delays.append(time.now)
        return 0.0

    mechanisms = {
        "PLAIN": Mechanism(lambda: PlainExchange(PLAIN_USERS), session_ms),
        "SCRAM-SHA-256": Mechanism(lambda: exchange(SCRAM_USERS), session_ms),
        "ENDS": Mechanism(lambda: Ends(time, 30), session_ms),
        "BROKEN": Mechanism(Broken),
    }
    async with direct_broker(tmp_path) as broker:
        door = SaslDoor(broker.broker.dispatcher, {"SASL": mechanisms}, time.monotonic, time.time_ms, delay)
        yield lambda: Client(door, time, delays)


async def test_plain_authentication_succeeds(tmp_path: Path) -> None:
    async with clients(tmp_path) as connect:
        client = connect()
        asked = ApiVersionsRequest(client_software_name="c", client_software_version="1")
        assert (await client.send(asked)).error_code == ErrorCode.NONE
        shaken = await client.shake()
        assert (shaken.error_code, shaken.mechanisms) == (ErrorCode.NONE, OFFERED)
        assert client.peer.session is None
        done = await client.authenticate(ANN)
        assert (done.error_code, done.auth_bytes, done.session_lifetime_ms) == (ErrorCode.NONE, b"", 0)
        session = client.peer.session
        assert (session.principal, session.listener, session.mechanism, session.since, session.expires) == (
            Principal("User", "ann"),
            "SASL",
            "PLAIN",
            1000.0,
            None,
        )
        assert await client.is_served()


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_scram_in_two_steps(tmp_path: Path, version: int) -> None:
    async with clients(tmp_path) as connect:
        client, scram = connect(), ScramClient("ann", "secret-1")
        await client.shake("SCRAM-SHA-256")
        first = await client.authenticate(scram.first, version)
        assert client.peer.session is None
        final = await client.authenticate(scram.final(first.auth_bytes), version)
        assert scram.is_served_by_the_right_one(final.auth_bytes)
        assert client.peer.session.principal == Principal("User", "ann")


async def test_messages_without_headers_after_a_handshake_of_version_0(tmp_path: Path) -> None:
    async with clients(tmp_path) as connect:
        client, scram = connect(), ScramClient("ann", "secret-1")
        await client.shake("SCRAM-SHA-256", 0)
        first = await client.raw(scram.first)
        assert first is not None
        assert scram.is_served_by_the_right_one(await client.raw(scram.final(first)) or b"")
        assert await client.is_served()

        wrong = connect()
        await wrong.shake("PLAIN", 0)
        with pytest.raises(CloseConnection, match="authentication by PLAIN failed") as reason:
            await wrong.raw(b"\0ann\0wrong")
        assert reason.value.answer is None
        assert wrong.peer.session is None


async def test_requests_before_authentication_close_the_connection(tmp_path: Path) -> None:
    """The connection is closed, in every state before authentication."""
    async with clients(tmp_path) as connect:
        for mechanism in (None, "PLAIN", "SCRAM-SHA-256"):
            for request in (MetadataRequest(topics=[]), CreateDelegationTokenRequest()):
                client = connect()
                if mechanism is not None:
                    await client.shake(mechanism)
                with pytest.raises(CloseConnection, match="before authentication") as reason:
                    await client.raw(encode_request_header(RequestHeader(request.API_KEY, 3, 1, "c"), 1))
                assert reason.value.answer is None


async def test_a_refused_client_is_told_and_disconnected_after_the_delay(tmp_path: Path) -> None:
    async with clients(tmp_path) as connect:
        plain = connect()
        await plain.shake()
        with pytest.raises(HungUp) as reason:
            await plain.authenticate(b"\0ann\0wrong")
        told = reason.value.told
        assert (told.error_code, told.error_message, told.auth_bytes) == (
            ErrorCode.SASL_AUTHENTICATION_FAILED,
            "Authentication failed: Invalid username or password",
            b"",
        )
        assert plain.delays == [1000.0]

        for name, password in (("ann", "wrong"), ("nobody", "secret-1")):
            scram, client = connect(), ScramClient(name, password)
            await scram.shake("SCRAM-SHA-256")
            first = await scram.authenticate(client.first)
            with pytest.raises(HungUp) as reason:
                await scram.authenticate(client.final(first.auth_bytes))
            assert reason.value.told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert reason.value.told.error_message == (
                "Authentication failed during authentication due to invalid credentials with SASL mechanism "
                "SCRAM-SHA-256"
            )
            assert scram.peer.session is None


async def test_a_mechanism_that_is_not_offered(tmp_path: Path) -> None:
    async with clients(tmp_path) as connect:
        with pytest.raises(HungUp) as reason:
            await connect().shake("GSSAPI")
        told = reason.value.told
        assert told.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert told.mechanisms == OFFERED


async def test_authentication_messages_out_of_order_are_refused(tmp_path: Path) -> None:
    async with clients(tmp_path) as connect:
        with pytest.raises(HungUp, match="without a SaslHandshake") as reason:
            await connect().authenticate(ANN)
        assert reason.value.told.error_code == ErrorCode.ILLEGAL_SASL_STATE

        twice = connect()
        await twice.shake()
        with pytest.raises(HungUp) as reason:
            await twice.shake()
        assert reason.value.told.error_code == ErrorCode.ILLEGAL_SASL_STATE

        late = connect()
        await late.shake()
        await late.authenticate(ANN)
        assert (await late.shake()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        again = await late.authenticate(ANN)
        assert (again.error_code, again.error_message) == (
            ErrorCode.ILLEGAL_SASL_STATE,
            "SaslAuthenticate request received after successful authentication",
        )
        assert await late.is_served()

        asking = connect()
        await asking.shake()
        with pytest.raises(HungUp, match="API key 18 before authentication"):
            await asking.send(ApiVersionsRequest())


async def test_a_scram_final_message_is_accepted_once_per_exchange(tmp_path: Path) -> None:
    async with clients(tmp_path) as connect:
        client, scram = connect(), ScramClient("ann", "secret-1")
        await client.shake("SCRAM-SHA-256")
        final = scram.final((await client.authenticate(scram.first)).auth_bytes)
        await client.authenticate(final)
        assert (await client.authenticate(final)).error_code == ErrorCode.ILLEGAL_SASL_STATE
        other = connect()
        await other.shake("SCRAM-SHA-256")
        with pytest.raises(HungUp):
            await other.authenticate(final)


async def test_a_session_ends_unless_it_is_authenticated_again(tmp_path: Path) -> None:
    async with clients(tmp_path, 10_000) as connect:
        client = connect()
        await client.shake()
        assert (await client.authenticate(ANN)).session_lifetime_ms == 10_000
        client.time.now += 9.9
        assert await client.is_served()
        assert (await client.shake()).error_code == ErrorCode.NONE
        assert (await client.authenticate(ANN)).session_lifetime_ms == 10_000
        client.time.now += 9.9
        assert await client.is_served()
        client.time.now += 0.1
        with pytest.raises(CloseConnection, match="its session has expired") as reason:
            await client.raw(encode_request_header(RequestHeader(3, 9, 1, "c"), 2))
        assert reason.value.answer is None
        assert (await client.shake()).error_code == ErrorCode.NONE, "even then it may authenticate again"
        await client.authenticate(ANN)
        assert await client.is_served()


async def test_a_session_ends_with_its_credentials_or_sooner(tmp_path: Path) -> None:
    for session_ms, lifetime_ms in ((0, 30_000), (10_000, 10_000), (60_000, 30_000)):
        async with clients(tmp_path / str(session_ms), session_ms) as connect:
            client = connect()
            await client.shake("ENDS")
            assert (await client.authenticate(b"ann")).session_lifetime_ms == lifetime_ms
            assert client.peer.session.expires == 1000.0 + lifetime_ms / 1000


async def test_reauthentication_cannot_change_the_principal(tmp_path: Path) -> None:
    async with clients(tmp_path, 10_000) as connect:
        for mechanism, message, told in (
            (
                "PLAIN",
                b"\0bob\0secret-2",
                "Cannot change principals during re-authentication from User.ann: User.bob",
            ),
            (
                "ENDS",
                b"ann",
                "SASL mechanism 'ENDS' requested by client is not supported for re-authentication of mechanism "
                "'PLAIN'",
            ),
        ):
            client = connect()
            await client.shake()
            await client.authenticate(ANN)
            client.time.now += 2
            await client.shake(mechanism)
            with pytest.raises(HungUp) as reason:
                await client.authenticate(message)
            assert reason.value.told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert reason.value.told.error_message == told
            assert client.peer.session.principal == Principal("User", "ann")


async def test_reauthentication_is_limited_in_rate_and_to_expiring_sessions(tmp_path: Path) -> None:
    async with clients(tmp_path, 10_000) as connect:
        client = connect()
        await client.shake()
        await client.authenticate(ANN)
        assert (await client.shake()).error_code == ErrorCode.NONE, "the first time at once"
        await client.authenticate(ANN)
        client.time.now += 0.9
        assert (await client.shake()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert await client.is_served()
        client.time.now += 0.1
        assert (await client.shake()).error_code == ErrorCode.NONE
        with pytest.raises(HungUp):
            await client.authenticate(b"\0ann\0wrong")


async def test_a_deleted_user_is_refused_as_soon_as_it_authenticates_again(tmp_path: Path) -> None:
    async with clients(tmp_path, 10_000) as connect:
        client, scram = connect(), ScramClient("carl", "secret-3")
        SCRAM_USERS["carl"] = credential("secret-3")
        try:
            await client.shake("SCRAM-SHA-256")
            final = scram.final((await client.authenticate(scram.first)).auth_bytes)
            assert (await client.authenticate(final)).error_code == ErrorCode.NONE
        finally:
            del SCRAM_USERS["carl"]
        assert (await client.shake("SCRAM-SHA-256")).error_code == ErrorCode.NONE
        with pytest.raises(HungUp) as reason:
            again = ScramClient("carl", "secret-3")
            await client.authenticate(again.final((await client.authenticate(again.first)).auth_bytes))
        assert reason.value.told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_sasl_state_belongs_to_its_listener(tmp_path: Path) -> None:
    async with clients(tmp_path) as connect, direct_broker(tmp_path / "other") as broker:
        client = connect()
        client.peer = broker.peer
        assert await client.is_served()
        assert (await client.shake()).error_code == ErrorCode.ILLEGAL_SASL_STATE
        stranger = connect()
        stranger.peer.listener = "ELSEWHERE"
        assert not await stranger.is_served()


def frame(key: int, version: int, body: bytes) -> bytes:
    return encode_request_header(RequestHeader(key, version, 1, "c"), 1) + body


async def test_frames_that_cannot_be_read_close_the_connection(tmp_path: Path) -> None:
    async with clients(tmp_path) as connect:
        for wrong in (
            b"",
            b"\0",
            b"\0\x11",
            frame(17, 2, b""),
            frame(17, 1, b"\x7f\xff"),
            frame(36, 0, b"\x7f\xff\xff\xff"),
            frame(36, 3, b""),
            frame(17, 1, b""),
        ):
            with pytest.raises(CloseConnection):
                await connect().raw(wrong)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("shake"), st.sampled_from(["PLAIN", "SCRAM-SHA-256", "X", ""])),
            st.tuples(
                st.just("say"),
                st.sampled_from([ANN, b"\0ann\0x", b"n,,n=ann,r=abc", b"", b"\0bob\0secret-2"]),
            ),
            st.tuples(st.just("wait"), st.sampled_from([0.5, 5.0, 20.0])),
            st.tuples(st.just("bytes"), st.binary(max_size=40)),
        ),
        max_size=8,
    )
)
def test_no_order_of_messages_gets_in_without_a_password(steps: list[tuple[str, Any]]) -> None:
    """A connection with a session has proved its identity, in the state in which it was asked to."""
    now, proved = 0.0, None
    one = Authentication(
        "L",
        {
            "PLAIN": Mechanism(lambda: PlainExchange(PLAIN_USERS), 10_000),
            "SCRAM-SHA-256": Mechanism(lambda: exchange(SCRAM_USERS), 10_000),
        },
    )
    wanted = ""
    for kind, value in steps:
        try:
            if kind == "shake":
                one.handshake(value, 1, now)
                wanted = value
            elif kind == "wait":
                now += value
            else:
                could = wanted == "PLAIN" and one.state is State.FRAMED
                one.authenticate(value, now, int(now * 1000))
                if could and value in (ANN, b"\0bob\0secret-2"):
                    proved = proved or value.split(b"\0")[1].decode()
        except Refusal:
            assert one.state is State.REFUSED
            break
    assert (None if one.session is None else one.session.principal.name) == proved


_FRAMES = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda key, version, body: frame(key, version, body),
        st.sampled_from([17, 18, 36]),
        st.integers(-1, 4),
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [
                    b"\0\x05PLAIN",
                    b"\0\x0dSCRAM-SHA-256",
                    b"\0\0\0\x07\0ann\0xy",
                    b"\0" + b"\x08" + b"\0ann\0xy",
                ]
            ),
        ),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(_FRAMES, max_size=6))
def test_any_frames_are_answered_or_close_the_connection(frames: list[bytes]) -> None:
    """Only public requests are answered, nothing else is raised, and no client gets in."""

    def inner(peer: Peer, frame: bytes | memoryview) -> Any:
        assert frame[:2] == b"\0\x12"
        return [b""]

    mechanisms = {
        "PLAIN": Mechanism(lambda: PlainExchange(PLAIN_USERS)),
        "SCRAM-SHA-256": Mechanism(lambda: exchange(SCRAM_USERS)),
    }
    door = SaslDoor(inner, {"SASL": mechanisms}, lambda: 0.0, lambda: 0, lambda: 0.0)
    peer = Peer(7, "10.0.0.7", 1, "SASL", None)
    for each in frames:
        try:
            answer = door(peer, each)
        except CloseConnection:
            break
        if isinstance(answer, Pending):
            answer.outcome.close()  # type: ignore[attr-defined]
            break
    assert peer.session is None


async def test_a_mechanism_that_fails_otherwise_closes_the_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with clients(tmp_path) as connect:
        for version in (0, 1):
            client = connect()
            await client.shake("BROKEN", version)
            message = frame(36, 0, b"\0\0\0\x07hunter2") if version else b"hunter2"
            with pytest.raises(CloseConnection, match="failed: internal error"):
                await client.raw(message)
            assert client.peer.session is None
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 2
    assert "hunter2" not in caplog.text
