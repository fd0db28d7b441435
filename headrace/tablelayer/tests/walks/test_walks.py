"""`docs/internals/walks.md` is true: requests to a broker go through the calls that it lists."""

from __future__ import annotations

import pytest

from headrace.tablelayer.tests.walks.document import (
    DOCUMENT,
    Document,
    Length,
    arrows_not_walked,
    first_false_step,
    length,
    not_told,
    renewed,
)
from headrace.tablelayer.tests.walks.requests import trace_requests
from headrace.tablelayer.tests.walks.trace import ROOT, Call

REQUESTS = [
    "Produce to a plain topic",
    "Fetch from a plain topic",
    "Upsert into a primary-key table",
    "A JSON record into a primary-key table",
    "Lookup by primary key",
    "A tiering round",
    "A member joins a consumer group",
    "A transaction",
    "A replica's fetch",
]
AGAIN = "`python -m headrace.tablelayer.tests.walks` writes the numbers again and names what else differs"


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    return trace_requests(tmp_path_factory.mktemp("walks"))


@pytest.fixture(scope="module")
def document() -> Document:
    return Document.parse(DOCUMENT.read_text())


def test_the_document_has_a_walk_and_a_number_for_each_request(document: Document) -> None:
    assert list(document.walks) == list(document.lengths) == REQUESTS
    assert not document.unread


@pytest.mark.parametrize("name", REQUESTS)
def test_each_step_is_called_after_those_before_it(traces, document, name) -> None:
    step = first_false_step(document.walks[name], traces[name])
    assert step is None, f"{name}: {step} is not called after the steps before it; {AGAIN}"


@pytest.mark.parametrize("name", REQUESTS)
def test_each_file_that_is_passed_is_told(traces, document, name) -> None:
    assert not_told(document, name, traces[name]) == [], AGAIN


def test_helpers_are_files_that_are_passed_each_named_once(traces, document) -> None:
    passed = {call.path for calls in traces.values() for call in calls}
    assert set(document.helpers) <= passed, AGAIN
    assert len(set(document.helpers)) == len(document.helpers)


@pytest.mark.parametrize("name", REQUESTS)
def test_the_numbers_are_those_of_today(traces, document, name) -> None:
    assert document.lengths[name] == length(traces[name]), AGAIN


def test_each_file_that_is_named_is_there(document) -> None:
    assert [path for path in sorted(document.named) if not (ROOT / path).is_file()] == []


def test_the_picture_has_only_arrows_that_a_walk_goes(document) -> None:
    assert document.arrows
    assert arrows_not_walked(document) == []


def test_work_of_the_executor_is_seen(traces) -> None:
    (prepare,) = [call for call in traces[REQUESTS[2]] if call.function == "Tablet.prepare"]
    assert prepare.thread != traces[REQUESTS[2]][0].thread


TEXT = """
```mermaid
    one["a.py"]
    two["b.py"]
    one -- words --> two
    two --> one
```
## Walk

1. `a.py` `f`: first.
2. `b.py` `g`: second.
3. `c.py`: which function?

| Walk | 1 | 2 |

## Passed on the way

- `h.py`, `i.py`: help.
"""


def called(*calls: str, thread: int = 1, resumed: bool = False) -> list[Call]:
    return [Call(thread, 0, *each.split(), resumed=resumed) for each in calls]


def test_a_false_step_of_a_walk_is_found() -> None:
    document = Document.parse(TEXT)
    steps = document.walks["Walk"]
    assert first_false_step(steps, called("a.py f", "h.py x", "b.py g")) is None
    assert first_false_step(steps, called("b.py g", "a.py f")) == ("b.py", "g")
    assert first_false_step(steps, called("b.py g", "a.py f") + called("b.py g", resumed=True)) == (
        "b.py",
        "g",
    )
    assert not_told(document, "Walk", called("a.py f", "i.py x", "j.py y")) == ["j.py"]
    assert document.unread == ["3. `c.py`: which function?"]
    assert arrows_not_walked(document) == [("b.py", "a.py")]


def test_changes_are_counted_on_each_thread_by_itself() -> None:
    one, two = called("a.py f", "a.py g", "b.py h"), called("c.py x", "c.py y", thread=2)
    assert length(one + two) == Length(3, 2)
    assert length([one[0], two[0], one[1], two[1], one[2]]) == Length(3, 2)


def test_numbers_are_written_where_they_stand() -> None:
    expected = TEXT.replace("| Walk | 1 | 2 |", "| Walk | 30 | 40 |")
    assert renewed(TEXT.replace("2. `b.py`", "7. `b.py`"), {"Walk": Length(30, 40)}) == expected
