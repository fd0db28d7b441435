"""Requests about security and unsupported features: each is answered, and none loses its connection."""

from __future__ import annotations

import asyncio

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from headrace.protocol.messages.describe_quorum import DescribeQuorumRequest, TopicData
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from headrace.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from headrace.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from simulator.direct import direct_broker


def answers(tmp_path, *requests):
    async def ask():
        async with direct_broker(tmp_path) as broker:
            return [await broker.send(request) for request in requests]

    return asyncio.run(ask())


def test_without_an_authorizer_there_are_no_acls(tmp_path) -> None:
    described, created, deleted = answers(
        tmp_path,
        DescribeAclsRequest(resource_type_filter=1, operation=1, permission_type=1),
        CreateAclsRequest(creations=[AclCreation(principal="User:a"), AclCreation(principal="User:b")]),
        DeleteAclsRequest(filters=[DeleteAclsFilter()] * 3),
    )
    told = [(described.error_code, described.error_message)]
    told += [(result.error_code, result.error_message) for result in created.results]
    told += [(result.error_code, result.error_message) for result in deleted.filter_results]
    assert told == [(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured on the broker")] * 6


def test_a_plaintext_listener_refuses_sasl_requests(tmp_path) -> None:
    shaken, authenticated = answers(
        tmp_path, SaslHandshakeRequest(mechanism="PLAIN"), SaslAuthenticateRequest(auth_bytes=b"\0me\0secret")
    )
    assert (shaken.error_code, shaken.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    assert authenticated.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert "security.protocol=PLAINTEXT" in authenticated.error_message


def test_without_secrets_tokens_are_refused_and_scram_is_empty(tmp_path) -> None:
    *tokens, of_all, named = answers(
        tmp_path,
        CreateDelegationTokenRequest(),
        RenewDelegationTokenRequest(hmac=b"x"),
        ExpireDelegationTokenRequest(hmac=b"x"),
        DescribeDelegationTokenRequest(owners=None),
        DescribeUserScramCredentialsRequest(users=None),
        DescribeUserScramCredentialsRequest(users=[UserName(name="bob")]),
    )
    assert {token.error_code for token in tokens} == {ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED}
    assert [token.expiry_timestamp_ms for token in tokens[:3]] == [-1, -1, -1]
    assert (of_all.error_code, of_all.results) == (0, [])
    assert [(each.user, each.error_code) for each in named.results] == [("bob", ErrorCode.RESOURCE_NOT_FOUND)]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (DescribeQuorumRequest(topics=[TopicData(topic_name="__cluster_metadata")]), "no Raft quorum"),
    ],
)
def test_an_unsupported_security_request_is_refused_with_the_reason(tmp_path, request_, reason) -> None:
    (answer,) = answers(tmp_path, request_)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert reason in answer.error_message
