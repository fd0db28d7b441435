"""Java's properties format, compared with the results of java.util.Properties."""

from __future__ import annotations

import pytest

from headrace.protocol.security.properties import PropertiesError, read_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb = 2 \nc: 3\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# no\n  ! neither\n\na=#yes", {"a": "#yes"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=", {"a": ""}),
        ("a=x=y:z", {"a": "x=y:z"}),
        (r"a\=b=c", {"a=b": "c"}),
        ("a=one, \\\n   two, \\\r\n\tthree\nb=4", {"a": "one, two, three", "b": "4"}),
        (
            "a=-----BEGIN X-----\\n\\\n abc\\n\\\n-----END X-----",
            {"a": "-----BEGIN X-----\nabc\n-----END X-----"},
        ),
        (r"a=\t\r\f\q\\\u00fc", {"a": "\t\r\fq\\ü"}),
        ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
        ("a=b\\", {"a": "b"}),
        (
            'sasl.jaas.config=a.B required \\\n  user_ann="s;c ret" ;',
            {"sasl.jaas.config": 'a.B required user_ann="s;c ret" ;'},
        ),
    ],
)
def test_names_and_values(text, expected) -> None:
    assert read_properties(text) == expected


def test_a_line_without_a_value_is_named_by_its_number_and_not_repeated() -> None:
    with pytest.raises(PropertiesError, match=r"^line 2 is not of the form name=value$"):
        read_properties("a=1\nhunter2\n")
