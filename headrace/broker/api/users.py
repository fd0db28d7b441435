"""DescribeUserScramCredentials (50) and AlterUserScramCredentials (51): the users of SCRAM (KIP-554).

`kafka-configs --alter --entity-type users --add-config 'SCRAM-SHA-256=[...]'` is such a request. An error for one user
does not prevent changes to others. The rules and their errors are those of Kafka's ScramControlManager, except that one
request may alter both mechanisms of a user, as the documentation of kafka-configs says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Final

from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Work
from headrace.broker.security.requirement import whole
from headrace.broker.security.rights import Operation
from headrace.broker.security.sasl.scram import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    ScramMechanism,
    credential_of,
)
from headrace.broker.security.sasl.users import Change, ScramUsers
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

ALTERATIONS_MAX: Final = 1000
"""Maximum number of alterations in one request: they are one transaction of the store."""
_Alteration = ScramCredentialDeletion | ScramCredentialUpsertion
_TWICE: Final = (
    ErrorCode.DUPLICATE_RESOURCE,
    "A user credential cannot be altered twice in the same request",
)
_MISSING: Final = (
    ErrorCode.RESOURCE_NOT_FOUND,
    "Attempt to delete a user credential that does not exist",
)
_MECHANISMS: Final = {int(mechanism) for mechanism in ScramMechanism}


class UsersApi:
    """The handlers of the two APIs; see the module."""

    def __init__(self, users: ScramUsers) -> None:
        self._users = users

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                DescribeUserScramCredentialsRequest,
                DescribeUserScramCredentialsResponse,
                self.describe,
                whole(Operation.DESCRIBE),
            ),
            ApiDeclaration(
                AlterUserScramCredentialsRequest,
                AlterUserScramCredentialsResponse,
                self.alter,
                whole(Operation.ALTER),
                on_error=_altered_nobody,
            ),
        ]

    def describe(
        self, context: RequestContext, request: DescribeUserScramCredentialsRequest
    ) -> Work[DescribeUserScramCredentialsResponse]:
        """Return mechanisms and iterations of the named users, or of all."""
        named = Counter(user.name for user in request.users or ())
        results = []
        for name in named or self._users.names():
            result = DescribeUserScramCredentialsResult(user=name)
            credentials = self._users.credentials(name)
            if named[name] > 1:
                result.error_code = ErrorCode.DUPLICATE_RESOURCE
                result.error_message = f"Cannot describe SCRAM credentials for the same user twice: {name}"
            elif not credentials:
                result.error_code = ErrorCode.RESOURCE_NOT_FOUND
                result.error_message = f"Attempt to describe a user credential that does not exist: {name}"
            result.credential_infos = [
                CredentialInfo(mechanism=int(mechanism), iterations=credential.iterations)
                for mechanism, credential in sorted(credentials.items())
                if result.error_code == ErrorCode.NONE
            ]
            results.append(result)
            yield
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)

    def alter(
        self, context: RequestContext, request: AlterUserScramCredentialsRequest
    ) -> Work[Awaitable[AlterUserScramCredentialsResponse]]:
        if len(request.deletions) + len(request.upsertions) > ALTERATIONS_MAX:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"a request alters at most {ALTERATIONS_MAX} user credentials; send several requests",
            )
        wanted: dict[str, dict[ScramMechanism, Change]] = {}
        problems: dict[str, tuple[ErrorCode, str]] = {}
        for alteration in _alterations(request):
            name = alteration.name
            problem = problems.get(name) or _problem(alteration)
            if problem is None:
                change = _change(alteration)
                changes = wanted.setdefault(name, {})
                if change.mechanism in changes:
                    problem = _TWICE
                changes[change.mechanism] = change
            if problem is not None:
                problems[name] = problem
            yield
        for name in problems:
            wanted.pop(name, None)
        return self._alter(wanted, problems)

    async def _alter(
        self, wanted: dict[str, dict[ScramMechanism, Change]], problems: dict[str, tuple[ErrorCode, str]]
    ) -> AlterUserScramCredentialsResponse:
        missing: set[str] = set()

        def decide() -> Sequence[Change]:
            missing.clear()
            for name, changes in wanted.items():
                there = self._users.credentials(name)
                if any(each.credential is None and each.mechanism not in there for each in changes.values()):
                    missing.add(name)
            return [
                change
                for name, changes in wanted.items()
                if name not in missing
                for change in changes.values()
            ]

        await self._users.alter(decide)
        results = [
            AlterUserScramCredentialsResult(user=name, error_code=ErrorCode.NONE, error_message=None)
            for name in wanted
            if name not in missing
        ]
        problems.update(dict.fromkeys(sorted(missing), _MISSING))
        results += [
            AlterUserScramCredentialsResult(user=name, error_code=code, error_message=message)
            for name, (code, message) in problems.items()
        ]
        return AlterUserScramCredentialsResponse(results=results)


def _alterations(request: AlterUserScramCredentialsRequest) -> list[_Alteration]:
    return [*request.deletions, *request.upsertions]


def _problem(
    alteration: _Alteration,
) -> tuple[ErrorCode, str] | None:
    if not alteration.name:
        return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"
    if alteration.mechanism not in _MECHANISMS:
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"
    if isinstance(alteration, ScramCredentialUpsertion):
        if alteration.iterations < ITERATIONS_MIN:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"
        if alteration.iterations > ITERATIONS_MAX:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"
        if not alteration.salt or not alteration.salted_password:
            return ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty"
    return None


def _change(alteration: _Alteration) -> Change:
    mechanism = ScramMechanism(alteration.mechanism)
    if isinstance(alteration, ScramCredentialDeletion):
        return Change(alteration.name, mechanism, None)
    credential = credential_of(mechanism, alteration.salted_password, alteration.salt, alteration.iterations)
    return Change(alteration.name, mechanism, credential)


def _altered_nobody(
    request: AlterUserScramCredentialsRequest, version: int, error: KafkaError
) -> Work[AlterUserScramCredentialsResponse]:
    results: dict[str, AlterUserScramCredentialsResult] = {}
    for user in (alteration.name for alteration in _alterations(request)):
        yield
        if user not in results:
            results[user] = AlterUserScramCredentialsResult(
                user=user, error_code=error.code, error_message=error.message
            )
    return AlterUserScramCredentialsResponse(results=list(results.values()))
