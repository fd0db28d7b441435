"""The English of the tree breaks no rule of `prose/rules.py`, and the rules find what they are for."""

import subprocess
import sys
from collections import Counter

import pytest

from prose.__main__ import ROOT, folder, main, tree
from prose.passages import SUFFIXES, Kind, Passage, markdown, passages_of, python, scripts, settings
from prose.rules import RULES, findings, sentences

# Folders whose sentences are still to be rewritten. A folder leaves the list with its last finding; none joins it.
UNWRITTEN: frozenset[str] = frozenset()

# Sentences that are right as they are: file, rule, and words that stand in the sentence.
EXCEPTIONS: tuple[tuple[str, str, str], ...] = ()


of_the_tree = pytest.mark.xdist_group("prose")  # one process reads all files


@pytest.fixture(scope="module")
def every():
    return list(tree([]))


@pytest.fixture(scope="module")
def found(every):
    return [
        (path, finding)
        for path, finding in every
        if not any(
            path.as_posix() == file and finding.rule == rule and words in finding.sentence
            for file, rule, words in EXCEPTIONS
        )
    ]


@of_the_tree
def test_folders_that_were_rewritten_stay_clean(found):
    wrong = [
        f"{path}:{finding.line}: {finding.rule} ({RULES[finding.rule]}): {finding.sentence}"
        for path, finding in found
        if folder(path) not in UNWRITTEN
    ]
    assert not wrong, "\n".join(wrong)


@of_the_tree
def test_the_list_of_folders_to_rewrite_shrinks(found):
    left = {folder(path) for path, _ in found}
    assert not UNWRITTEN - left, "these folders are clean: take them out of UNWRITTEN"


@of_the_tree
def test_exceptions_are_few_and_needed(every):
    assert len(EXCEPTIONS) < 20
    for file, rule, words in EXCEPTIONS:
        assert any(
            path.as_posix() == file and finding.rule == rule and words in finding.sentence
            for path, finding in every
        ), (file, rule, words)


# -- rules


def broken(text, kind=Kind.DOCSTRING):
    return [finding.rule for finding in findings(Passage(kind, 1, text))]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("opener", "What is acknowledged with acks=all is lost with no broker."),
        ("opener", "Of a deletion, the replicas that are left."),
        ("opener", "Who may not know of a topic hears the same as of any other."),
        ("opener", "Whether who sent the request may do this."),
        ("opener", "So many rows fit into an answer, of any size."),
        ("opener", "How long a fetch waits."),
        ("opener", "That the broker stops."),
        ("opener", "By their file in the site."),
        ("opener", "As `read`, for many."),
        ("opener", "Return the rows. What is left stays."),
        ("person", "Wait until nobody reads the file."),
        ("person", "Somebody else has written the node."),
        ("person", "The batch is kept, whoever asks for it."),
        ("person", "Everyone may read."),
        ("headless-who", "Return the partitions for who asks."),
        ("headless-who", "Wake those who wait."),
        ("is-no", "The value is no number."),
        ("is-no", "The folders are no partitions."),
        ("is-no", "Raise ValueError for bytes that are none."),
        ("so-many", "Return at most so many rows."),
        ("what", "Return what an answer has of the region."),
        ("old-word", "The log is copied anew."),
        ("also-if", "Each row is written once, also if tasks are repeated."),
        ("so-many", "A member that is silent for so long is removed."),
        ("long", "Return " + "a row " * 20 + "."),
        ("backticks", "Return ``rows`` of a table."),
    ],
)
def test_a_sentence_that_breaks_a_rule_is_found(rule, text):
    assert broken(text) == [rule]


@pytest.mark.parametrize(
    "text",
    [
        "Return the batches for a follower.",
        "The offsets of a partition.",
        "Whether the caller is authorized now.",
        "Call `nobody` and `is no` code.",
        "There is no file. There will be no file, and there are none.",
        "The broker is no longer a leader, and is no later than the others.",
        "Append as many rows as fit, so long as the log has room.",
        "Return a value so that the reader goes on.",
        "See [the rules](https://example.org/nobody/whoever).",
        "Return " + "a row " * 19 + ".",
        "Return `" + "a row " * 50 + "`.",
        "Officers of a whole partition.",
        "Files of a topic:\n" + "\n".join(f"    {name}  the records of it" for name in "abcdefghijkl"),
        "Print examples.\n\n\\b\nheadrace serve " + "--set a=b " * 50 + "\n\nThen stop.",
    ],
)
def test_a_sentence_that_breaks_no_rule_is_left_alone(text):
    assert not broken(text)


def test_only_the_beginning_of_a_docstring_is_held_to_all_openers():
    assert not broken("Return the rows. As in Kafka, order is kept. Where it is not, a batch says so.")
    assert not broken("As in Kafka, order is kept.", Kind.MARKDOWN)
    assert broken("How long a fetch waits.", Kind.MESSAGE) == ["opener"]
    assert not broken("How long does a fetch wait? Which one?", Kind.MARKDOWN)
    assert not broken("What is promised", Kind.HEADING)
    assert not broken("Return ``rows`` of a table.", Kind.COMMENT)


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("opener", "test_what_is_old_goes"),
        ("opener", "test_r3_5_of_two_writers_one_wins"),
        ("opener", "test_it_rests_in_every_array"),
        ("opener", "test_cve_2017_12610_who_is_another_user_is_refused"),
        ("person", "test_a_full_disk_holds_up_nobody"),
        ("headless-who", "test_the_topic_is_for_those_who_may_read"),
        ("is-no", "test_a_path_is_no_node"),
        ("so-many", "test_there_are_so_many_lines"),
    ],
)
def test_a_test_name_that_is_a_riddle_is_found(rule, name):
    source = f"class TestIt:\n    async def {name}(self):\n        pass\n"
    assert rule in [finding.rule for each in python(source) for finding in findings(each)]


def test_names_and_assertions_of_tests_are_held_to_the_rules():
    source = (
        "def test_r3_1_a_repeat_has_no_effect():\n"
        '    assert send(1, "nobody") == {"what": 0}, "nobody answers"\n'
        '    assert send(2, "nobody")\n'
        "    assert 0, (\n"
        '        "too long for one line"\n'
        "    )\n"
        "    send(\n"
        "        3\n"
        '    ), f"what {x} has sent"\n'
        "def the_test_nobody(): ...\n"
    )
    assert list(python(source, messages=False)) == [
        Passage(Kind.NAME, 1, "a repeat has no effect"),
        Passage(Kind.ASSERTION, 2, "nobody answers"),
        Passage(Kind.ASSERTION, 9, "what X has sent"),
    ]
    assert broken("what X has sent", Kind.ASSERTION) == ["opener"]
    assert not broken("it has what was sent", Kind.ASSERTION)
    assert not broken("wherever it is, there is a row", Kind.ASSERTION)


def test_statements_of_several_lines_are_not_long_sentences():
    assert not broken("SELECT a,\n" + "b, " * 60, Kind.MESSAGE)
    assert broken("select a, " + "b, " * 60, Kind.MESSAGE) == ["long"]


def test_sentences_end_at_stops_paragraphs_and_items():
    text = "One, e.g. this. `Two` (2)! Three\n\n- four\n- five."
    assert [sentence for _, sentence, _ in sentences(text)] == [
        "One, e.g. this.",
        "`Two` (2)!",
        "Three",
        "four",
        "five.",
    ]


# -- passages


def test_passages_of_python():
    source = (
        '"""A module."""\n'
        "LIMIT = 3\n"
        '"""An attribute."""\n'
        "# A comment of\n"
        "# two lines.\n"
        "#: Documents the next line.\n"
        "\n"
        "# Another one.\n"
        "def f(x):  # noqa: A001\n"
        "    '''A function.\n"
        "\n"
        "    Says \"it\"'s more.'''\n"
        "    raise ValueError(\n"
        "        f\"partition {x['a']!r} of {x:{3}} rows\"\n"
        '        " cannot be # read\\n"\n'
        "    )\n"
        '    y = """not a docstring, it is data"""\n'
        "    return b'one two three four five', 'too short', \"not \\\"joined\\\" with it\"\n"
    )
    assert list(python(source)) == [
        Passage(Kind.DOCSTRING, 1, "A module."),
        Passage(Kind.DOCSTRING, 3, "An attribute."),
        Passage(Kind.COMMENT, 4, "A comment of\ntwo lines.\nDocuments the next line.\n"),
        Passage(Kind.COMMENT, 8, "Another one.\n"),
        Passage(Kind.DOCSTRING, 10, 'A function.\n\n    Says "it"\'s more.'),
        Passage(Kind.MESSAGE, 14, "partition X of X rows cannot be # read\n"),
        Passage(Kind.MESSAGE, 17, "not a docstring, it is data"),
        Passage(Kind.MESSAGE, 18, 'not "joined" with it'),
    ]
    assert not [each for each in python(source, messages=False) if each.kind is Kind.MESSAGE]


def test_passages_of_markdown():
    text = (
        "# A heading\n"
        "A paragraph\nof two lines.\n"
        "- an item\n"
        "  of two lines\n"
        "1. another\n\n"
        "| a | b \\| c |\n|---|---|\n| d | |\n\n"
        "```sh\n# nobody\n```\n<!-- nobody\n -->\n"
        "The end.\n"
    )
    assert list(markdown(text)) == [
        Passage(Kind.HEADING, 1, "A heading"),
        Passage(Kind.MARKDOWN, 2, "A paragraph\nof two lines."),
        Passage(Kind.MARKDOWN, 4, "- an item\n  of two lines"),
        Passage(Kind.MARKDOWN, 6, "1. another"),
        *(Passage(Kind.MARKDOWN, line, cell) for line, cell in [(8, "a"), (8, "b \\| c"), (10, "d")]),
        Passage(Kind.MARKDOWN, 17, "The end."),
    ]


def test_passages_of_scripts():
    source = (
        "// A comment.\n"
        "/**\n * Says what\n * a class does.\n */\n"
        "const text = `three words here`, short = 'two words', other = \"one two three\";\n"
        "<h1>A heading of a page</h1>\n"
    )
    assert list(scripts(source)) == [
        Passage(Kind.COMMENT, 1, "A comment."),
        Passage(Kind.COMMENT, 2, "Says what\na class does."),
        Passage(Kind.MESSAGE, 6, "three words here"),
        Passage(Kind.MESSAGE, 6, "one two three"),
        Passage(Kind.MESSAGE, 7, "A heading of a page"),
    ]
    assert [each.kind for each in scripts(source, messages=False)] == [Kind.COMMENT, Kind.COMMENT]


def test_passages_of_settings():
    source = (
        "# A comment.\n"
        'promise = "What holds"\n'
        "old = '''\n# nobody\n'''\n"
        "key: value  # Behind a value.\n"
        "  description: A row.\n"
    )
    assert list(settings(source)) == [
        Passage(Kind.COMMENT, 1, "A comment."),
        Passage(Kind.MESSAGE, 2, "What holds"),
        Passage(Kind.COMMENT, 6, "Behind a value."),
        Passage(Kind.MESSAGE, 7, "A row."),
    ]


def test_every_kind_of_file_has_its_passages(tmp_path):
    for suffix in SUFFIXES:
        path = tmp_path / f"file{suffix}"
        path.write_text(
            "# Nobody asks.\n" if suffix not in (".js", ".java", ".html") else "// Nobody asks.\n"
        )
        assert [f.rule for each in passages_of(path) for f in findings(each)] == ["person"], suffix


def test_passages_begin_where_their_text_stands():
    for path in [
        ROOT / "headrace" / "protocol" / "schema.py",
        ROOT / "headrace" / "broker" / "server.py",
        ROOT / "docs" / "kafka.md",
    ]:
        lines = path.read_text().splitlines()
        counts = Counter()
        for passage in passages_of(path):
            if passage.kind is not Kind.MESSAGE:
                first = passage.text.strip().partition("\n")[0]
                assert first in lines[passage.line - 1] or not passage.text.partition("\n")[0], passage
                counts[passage.kind] += 1
        assert counts


def test_strings_in_tests_are_not_messages(tmp_path):
    for name, kinds in [("code.py", [Kind.MESSAGE]), ("tests/test_code.py", [])]:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x = 'this value is no number at all'\n")
        assert [each.kind for each in passages_of(path)] == kinds


# -- the command


def test_the_command_says_what_to_rewrite(capsys, monkeypatch, tmp_path):
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr("prose.__main__.ROOT", tmp_path)
    page = tmp_path / "docs" / "pages" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text("The value\n\nis no number. Nobody asks.\n")
    assert main([str(page)]) == 1
    assert capsys.readouterr().out == (
        "docs/pages/page.md:3: is-no: is no number.\ndocs/pages/page.md:3: person: Nobody asks.\n"
    )
    assert main([str(page), "--count", "--by-folder"]) == 1
    printed = capsys.readouterr().out
    assert "     1 is-no: write" in printed
    assert "     2 docs/pages\n" in printed
    page.write_text("The value is not a number.\n")
    assert main([str(page)]) == 0


def test_the_command_runs_alone():
    done = subprocess.run(
        [sys.executable, "-m", "prose", "prose"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
