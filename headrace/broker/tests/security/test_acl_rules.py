"""The meaning of ACLs, compared with Kafka's rules written without an index, and with known cases."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.broker.runtime.slices import finish
from headrace.broker.security.acl.authorizer import AclAuthorizer
from headrace.broker.security.acl.model import (
    Acl,
    AclFilter,
    PatternType,
    Permission,
    checked,
    checked_filter,
)
from headrace.broker.security.acl.rules import AclRules
from headrace.broker.security.principal import Principal, Session
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
ANN = Session(Principal("User", "ann"), "L", "PLAIN")
OPERATIONS = [operation for operation in Operation if operation > Operation.ALL]


def acl(
    name: str,
    operation: int = Operation.READ,
    permission: int = ALLOW,
    *,
    kind: int = LITERAL,
    principal: str = "User:ann",
    host: str = "*",
    resource_type: int = TOPIC,
) -> Acl:
    return Acl(resource_type, kind, name, principal, host, operation, permission)


def oracle(
    acls: list[Acl], principal: str, host: str, operation: int, resource_type: int, name: str
) -> bool | None:
    """Kafka's rules, read from its documentation (security.html, KIP-290), one ACL after the other."""
    about = [
        each
        for each in acls
        if each.resource_type == resource_type
        and (
            (each.pattern_type == LITERAL and each.name in (name, "*"))
            or (each.pattern_type == PREFIXED and name.startswith(each.name))
        )
    ]
    mine = [each for each in about if each.principal in (principal, "User:*") and each.host in (host, "*")]
    if any(each.permission == DENY and each.operation in (operation, Operation.ALL) for each in mine):
        return False
    enough = {operation, Operation.ALL}
    if operation == Operation.DESCRIBE:
        enough |= {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    if operation == Operation.DESCRIBE_CONFIGS:
        enough |= {Operation.ALTER_CONFIGS}
    if any(each.permission == ALLOW and each.operation in enough for each in mine):
        return True
    return False if about else None


names = st.text("ab*.", min_size=1, max_size=4)
principals = st.sampled_from(["User:ann", "User:bob", "User:*", "Group:ann"])
hosts = st.sampled_from(["*", "10.0.0.1", "10.0.0.2"])
acls_ = st.builds(
    Acl,
    st.sampled_from([TOPIC.value, GROUP.value]),
    st.sampled_from([LITERAL.value, PREFIXED.value]),
    st.one_of(st.just("*"), names),
    principals,
    hosts,
    st.sampled_from([operation.value for operation in Operation if operation != Operation.ANY]),
    st.sampled_from([ALLOW.value, DENY.value]),
)
questions = st.tuples(
    principals,
    hosts,
    st.sampled_from(OPERATIONS),
    st.sampled_from([TOPIC, GROUP]),
    names,
)


@given(st.lists(acls_, max_size=12), st.lists(acls_, max_size=4), st.lists(questions, min_size=1, max_size=8))
@example([acl("a", kind=PREFIXED)], [], [("User:ann", "*", Operation.READ, TOPIC, "ab")])
def test_the_index_decides_like_the_rules(acls, gone, asked) -> None:
    """It holds also after ACLs were added twice and removed, existing or not."""
    rules = AclRules([*acls, *gone, *acls])
    for each in gone:
        rules.remove(each)
        rules.remove(each)
    left = [each for each in dict.fromkeys(acls) if each not in gone]
    assert sorted(rules) == sorted(left)
    for question in asked:
        assert rules.decide(*question) == oracle(left, *question)


@given(st.lists(acls_, max_size=12), questions)
@example([acl("a", kind=PREFIXED)], ("User:ann", "*", Operation.READ, TOPIC, "ab"))
def test_allowed_patterns_are_those_that_acls_allow_before_denials(acls, question) -> None:
    *who_and_what, name = question
    rules = AclRules(acls)
    listed = list(rules.allowed(*who_and_what))
    if rules.decide(*question):
        assert any(name.startswith(each) if is_prefix else name == each for each, is_prefix in listed)
    without_denials = AclRules([each for each in acls if each.permission == ALLOW])
    for each, is_prefix in listed:
        assert without_denials.decide(*who_and_what, each + "\0" * is_prefix)


@given(st.lists(acls_, max_size=10), questions, st.booleans())
def test_some_resource_is_allowed_when_there_is_one(acls, question, without_acl) -> None:
    """There are enough resources: each name of a pattern, names under each prefix, and one that is in no ACL."""
    principal, host, operation, resource_type, _ = question
    candidates = [each.name for each in acls] + [each.name + "\0" for each in acls] + ["\0"]
    said = [oracle(acls, principal, host, operation, resource_type, name) for name in candidates]
    expected = any(without_acl if each is None else each for each in said)
    rules = AclRules(acls)
    assert rules.decide_any(principal, host, operation, resource_type, without_acl=without_acl) == expected


filters = st.builds(
    AclFilter,
    st.sampled_from([ResourceType.ANY.value, TOPIC.value, GROUP.value]),
    st.sampled_from([kind.value for kind in PatternType]),
    st.one_of(st.none(), st.just("*"), names),
    st.one_of(st.none(), principals),
    st.one_of(st.none(), hosts),
    st.sampled_from([Operation.ANY.value, Operation.READ.value, Operation.ALL.value]),
    st.sampled_from([Permission.ANY.value, ALLOW.value, DENY.value]),
)


@given(st.lists(acls_, max_size=12), filters)
def test_a_filter_finds_through_the_index_what_it_matches(acls, wanted) -> None:
    found = finish(AclRules(acls).matching(wanted))
    assert len(set(found)) == len(found)
    assert sorted(found) == sorted(each for each in set(acls) if wanted.matches(each))


def test_a_denial_holds_in_any_order_of_acls() -> None:
    """Any pattern may deny, before or after one that allows."""
    kinds = [(LITERAL, "orders"), (PREFIXED, "or"), (PREFIXED, "orders"), (LITERAL, "*")]
    for allowing in kinds:
        for denying in kinds:
            for operation in (Operation.READ, Operation.ALL):
                rules = AclRules(
                    [
                        acl(allowing[1], Operation.ALL, kind=allowing[0]),
                        acl(denying[1], operation, DENY, kind=denying[0], principal="User:*"),
                    ]
                )
                assert rules.decide("User:ann", "h", Operation.READ, TOPIC, "orders") is False
                assert rules.decide("User:ann", "h", Operation.WRITE, TOPIC, "orders") is (
                    operation != Operation.ALL
                )


def test_implied_operations_follow_from_allowing_acls_only() -> None:
    implying = {
        Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
        Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
    }
    for wanted in OPERATIONS:
        for said in OPERATIONS:
            allowed = said == wanted or said in implying.get(wanted, ())
            assert AclRules([acl("t", said)]).decide("User:ann", "h", wanted, TOPIC, "t") is allowed
            rules = AclRules([acl("t", Operation.ALL), acl("t", said, DENY)])
            assert rules.decide("User:ann", "h", wanted, TOPIC, "t") is (said != wanted)


def test_filters_match_as_kafkas() -> None:
    kept = [
        acl("foobar"), acl("foo", kind=PREFIXED), acl("*"), acl("foo"), acl("foobar", kind=PREFIXED), acl("fo2"),
    ]  # fmt: skip

    def found(kind: int, name: str | None) -> set[tuple[int, str]]:
        wanted = AclFilter(TOPIC, kind, name, None, None, Operation.ANY, Permission.ANY)
        return {(each.pattern_type, each.name) for each in kept if wanted.matches(each)}

    assert found(PatternType.ANY, "foobar") == {(LITERAL, "foobar"), (PREFIXED, "foobar")}
    assert found(PatternType.MATCH, "foobar") == {
        (LITERAL, "foobar"), (PREFIXED, "foo"), (LITERAL, "*"), (PREFIXED, "foobar"),
    }  # fmt: skip
    assert found(LITERAL, "*") == {(LITERAL, "*")}
    assert found(PREFIXED, None) == {(PREFIXED, "foo"), (PREFIXED, "foobar")}
    assert len(found(PatternType.ANY, None)) == 6


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (acl(""), "name should not be empty"),
        (acl("t", Operation.ANY), "Invalid operation 1"),
        (acl("t", 99), "Invalid operation 99"),
        (acl("t", permission=Permission.ANY), "Invalid permissionType 1"),
        (acl("t", kind=PatternType.MATCH), "Invalid patternType 2"),
        (acl("t", resource_type=ResourceType.ANY), "Invalid resourceType 1"),
        (acl("t", resource_type=0), "Invalid resourceType 0"),
        (acl("t", resource_type=ResourceType.CLUSTER), f"CLUSTER resource is {CLUSTER_NAME}"),
        (acl("t", principal="ann"), "no colon|type and name"),
        (acl("t", host=""), "host should not be empty"),
        (acl("t" * 5000), "longer than 4096"),
    ],
)
def test_a_meaningless_acl_is_refused(wrong, complaint) -> None:
    with pytest.raises(KafkaError, match=complaint) as caught:
        checked(wrong)
    assert caught.value.code == ErrorCode.INVALID_REQUEST


def test_a_filter_with_unknown_parts_is_refused() -> None:
    for wrong in (
        AclFilter(0, 1, None, None, None, 1, 1),
        AclFilter(1, 0, None, None, None, 1, 1),
        AclFilter(1, 1, None, None, None, 77, 1),
        AclFilter(1, 1, None, None, None, 1, 0),
    ):
        with pytest.raises(KafkaError, match="is unknown"):
            checked_filter(wrong)


def test_an_address_is_one_however_it_is_written() -> None:
    kept = checked(acl("t", host="0:0:0:0:0:0:0:1"))
    mapped = checked(acl("m", host="::ffff:10.0.0.1"))
    authorizer = AclAuthorizer(AclRules([kept, mapped]))
    assert authorizer.may(ANN, "::1", Operation.READ, TOPIC, "t")
    assert authorizer.may(ANN, "::ffff:10.0.0.1", Operation.READ, TOPIC, "m")
    assert authorizer.may(ANN, "10.0.0.1", Operation.READ, TOPIC, "m")
    assert not authorizer.may(ANN, "::2", Operation.READ, TOPIC, "t")


# -- the authorizer ----------------------------------------------------------------------------------------


def test_super_users_may_everything_and_others_nothing_without_acl() -> None:
    authorizer = AclAuthorizer(AclRules([acl("t", Operation.ALL, DENY)]), ["User:ann"])
    assert authorizer.may(ANN, "h", Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
    assert authorizer.may(ANN, "h", Operation.READ, TOPIC, "t")
    assert authorizer.may_any(ANN, "h", Operation.WRITE, TOPIC)
    for name in ("Ann", "ann ", "User:ann", ""):
        other = Session(Principal("User", name), "L", "PLAIN")
        assert not authorizer.may(other, "h", Operation.READ, TOPIC, "new")
        assert not authorizer.may_any(other, "h", Operation.WRITE, TOPIC)
    assert not authorizer.may(Session(Principal("Group", "ann"), "L"), "h", Operation.READ, TOPIC, "t")


def test_access_without_acl_ends_where_another_principal_has_one() -> None:
    authorizer = AclAuthorizer(AclRules([acl("t", principal="User:bob")]), allow_without_acl=True)
    assert authorizer.may(ANN, "h", Operation.WRITE, TOPIC, "new")
    assert not authorizer.may(ANN, "h", Operation.READ, TOPIC, "t")
    assert authorizer.may_any(ANN, "h", Operation.WRITE, TOPIC)


def test_answers_are_remembered_until_an_acl_changes() -> None:
    rules = AclRules([acl(f"t{number}") for number in range(1000)])
    asked = 0

    class Counting(AclRules):
        def decide(self, *question):
            nonlocal asked
            asked += 1
            return rules.decide(*question)

    authorizer = AclAuthorizer(Counting())
    for _ in range(3):
        assert all(authorizer.may(ANN, "h", Operation.READ, TOPIC, f"t{number}") for number in range(1000))
    assert asked == 1000
    rules.remove(acl("t7"))
    before = authorizer.version
    authorizer.changed()
    assert authorizer.version > before
    assert not authorizer.may(ANN, "h", Operation.READ, TOPIC, "t7")
    assert not authorizer.may(ANN, "h", Operation.WRITE, TOPIC, "t8")
    assert not authorizer.may(ANN, "h", Operation.READ, GROUP, "t8")
    bob = Session(Principal("User", "bob"), "L")
    assert not authorizer.may(bob, "h", Operation.READ, TOPIC, "t8")


def test_remembered_decisions_are_bounded(monkeypatch) -> None:
    monkeypatch.setattr("headrace.broker.security.acl.authorizer.ANSWERS_MAX", 10)
    authorizer = AclAuthorizer(AclRules([acl("t")]))
    for number in range(100):
        assert not authorizer.may(ANN, "h", Operation.READ, TOPIC, f"x{number}")
        assert not authorizer.may(ANN, "h", Operation.READ, GROUP, f"{number}" * 300)
        assert authorizer.may(ANN, "h", Operation.READ, TOPIC, "t")
        assert len(authorizer._answers) <= 10
