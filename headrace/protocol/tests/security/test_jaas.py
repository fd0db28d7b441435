"""`sasl.jaas.config`, as Kafka's JaasConfig reads it."""

from __future__ import annotations

import pytest

from headrace.protocol.security.jaas import JaasError, parse_jaas, parse_jaas_file

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (f"{PLAIN} required;", {}),
        (f'  {PLAIN}  REQUIRED a="b" ;  ', {"a": "b"}),
        (
            f'{PLAIN} required username="admin" password=\'x y\' user_ann="a;b=c";',
            {"username": "admin", "password": "x y", "user_ann": "a;b=c"},
        ),
        (f"{PLAIN} optional tokenauth=true;", {"tokenauth": "true"}),
        (f'{PLAIN} required user_jürgen="pä\\"ss\\\\ \\n\\101";', {"user_jürgen": 'pä"ss\\ \nA'}),
        (f'{PLAIN} required // who\n /* and\n how */ user_a="//b";', {"user_a": "//b"}),
        (f'{PLAIN} required a="";', {"a": ""}),
        (f'{PLAIN} required a = "b";', {"a": "b"}),
        (
            f'{PLAIN} required username=\'ann\' password="a\\"b;c=d";',
            {"username": "ann", "password": 'a"b;c=d'},
        ),
    ],
)
def test_a_login_module_and_its_options_are_parsed(text: str, options: dict[str, str]) -> None:
    entry = parse_jaas(text)
    assert (entry.module, entry.module_name, entry.options) == (PLAIN, "PlainLoginModule", options)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Login module not specified"),
        (PLAIN, "control flag not specified"),
        (f"{PLAIN} sometimes;", "Invalid login module control flag"),
        (f'{PLAIN} required a="hunter2"', "not terminated by semi-colon"),
        (f"{PLAIN} required a;", "Value not specified"),
        (f"{PLAIN} required a=;", "Value not specified"),
        (f'{PLAIN} required a="hunter2;', "quotation"),
        (f'{PLAIN} required a="hunter2"; {PLAIN} required;', "Only one login module"),
        (f"{PLAIN} required a=hunter2!;", "quotation"),
    ],
)
def test_a_malformed_entry_is_refused_without_showing_values(text: str, words: str) -> None:
    with pytest.raises(JaasError, match=words) as refused:
        parse_jaas(text)
    assert "hunter2" not in str(refused.value)


def test_an_entry_does_not_show_itself() -> None:
    assert "hunter2" not in repr(parse_jaas(f'{PLAIN} required a="hunter2";'))


def test_each_section_of_a_file_has_its_login_module() -> None:
    sections = parse_jaas_file(
        """// for ZooKeeper
        Client { a.DigestLoginModule required username="x{y}" password="};"; };
        "Kafka Server" { b.PlainLoginModule required; };"""
    )
    assert {name: (entry.module, entry.options) for name, entry in sections.items()} == {
        "Client": ("a.DigestLoginModule", {"username": "x{y}", "password": "};"}),
        "Kafka Server": ("b.PlainLoginModule", {}),
    }
    assert parse_jaas_file(" // nothing") == {}


@pytest.mark.parametrize(
    "text",
    [
        "Client a.M required;",
        "Client {",
        "Client { a.M required; }",
        "Client { a.M required };",
        "Client { a.M required; b.M required; };",
        "Client { };",
        "{ a.M required; };",
        "Client { a.M required x={; };",
        "Client { a.M required; }; }",
    ],
)
def test_a_file_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(JaasError):
        parse_jaas_file(text)


@pytest.mark.parametrize("text", ["a.M required x={;", "{ a.M required; };", "a.M required; }"])
def test_braces_are_for_files(text: str) -> None:
    with pytest.raises(JaasError):
        parse_jaas(text)
