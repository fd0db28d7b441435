"""The files of `logic/`, one test each, and the reader of such files."""

from pathlib import Path

import pyarrow as pa
import pytest

from headrace.tablelayer.sql.answer import Answer
from headrace.tablelayer.tests.sql.logic_files import FileError, read, run

FILES = sorted((Path(__file__).parent / "logic").glob("*.test"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sql_answers_as_its_file_says(sql, path, tmp_path):
    def carry_out(text):
        for answer in sql.session.run(text):
            last = answer
        return last

    complaints = run(read(path), carry_out, {"TEST_DIR": str(tmp_path), "DB": sql.database})
    assert not complaints, f"{len(complaints)} of {len(read(path))}:\n\n" + "\n\n".join(complaints)


def test_an_answer_that_differs_is_told_with_its_line(tmp_path):
    path = tmp_path / "a.test"
    path.write_text(
        "# a comment\nquery IT rowsort\nSELECT 1\n----\n2\tb\n1\t(empty)\n\n"
        "foreach n 3 4\n\nstatement count 3\nINSERT ${n}\n\nendloop\n\nstatement error no [a-z]+\nDROP\n"
    )
    rows = Answer(rows=pa.table({"a": [1, 2], "b": ["", "b"]}))
    answers = {"SELECT 1": rows, "INSERT 3": Answer(row_count=3), "INSERT 4": Answer(row_count=4)}
    assert [record.place for record in read(path)] == [
        "a.test:2",
        "a.test:10 n=3",
        "a.test:10 n=4",
        "a.test:15",
    ]

    def carry_out(text):
        if text == "DROP":
            raise ValueError("no such thing")
        return answers[text]

    (told,) = run(read(path), carry_out, {})
    assert told == "a.test:10 n=4\nINSERT 4\n4 rows were written"
    answers["SELECT 1"] = Answer(rows=pa.table({"a": [1, None], "b": ["", "b"]}))
    told, _ = run(read(path), carry_out, {})
    assert told == "a.test:2\nSELECT 1\nexpected\n1\t(empty)\n2\tb\nfound\n1\t(empty)\nNULL\tb"
    answers["SELECT 1"] = answers["INSERT 3"]
    assert "expected rows" in run(read(path), carry_out, {})[0]
    path.write_text("statement maybe\nSELECT 1\n")
    with pytest.raises(FileError, match=r"a\.test:1: 'statement maybe' does not begin a record"):
        read(path)


def test_values_are_written_as_the_files_have_them():
    from headrace.tablelayer.tests.sql.logic_files import rows_of

    entries = pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32()))
    rows = pa.table(
        {
            "m": entries,
            "l": pa.array([[1, None], []], pa.list_(pa.int32())),
            "r": pa.array(
                [{"a": "x", "b": None}, None], pa.struct([("a", pa.string()), ("b", pa.float64())])
            ),
            "t": pa.array([-1, 1_500_000_000], pa.timestamp("ns")),
            "z": pa.array([0, None], pa.timestamp("ms", "UTC")),
            "b": pa.array([b"\x00\xff", None]),
            "f": [float("nan"), -0.0],
            "o": [True, None],
        }
    )
    assert rows_of(rows, "nosort") == [
        "{'k'=1}\t[1, NULL]\t{'a': 'x', 'b': NULL}\t1969-12-31 23:59:59.999999999\t1970-01-01 00:00:00+00"
        "\tx'00ff'\tnan\ttrue",
        "NULL\t[]\tNULL\t1970-01-01 00:00:01.5\tNULL\tNULL\t-0.0\tNULL",
    ]
