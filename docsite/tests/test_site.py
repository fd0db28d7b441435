"""The site: no dead links, every reference complete, pictures as drawn, and every block that is marked runs."""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import headrace
from docsite import links, pictures, references
from docsite.blocks import Block, blocks_of, is_like
from docsite.links import dead_links, markdown_files, slug
from docsite.pages import DOCS, ROOT, assemble, written
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.topics import TOPIC_CONFIGS
from headrace.broker.groups.group_configs import GROUP_CONFIGS
from headrace.tablelayer.cli.main import app
from headrace.tablelayer.model.options.table_options import DECLARED
from headrace.tablelayer.server.extension import TableExtension
from headrace.tablelayer.tests.serve import Serve
from simulator.ports import free_port

PAGES = [path.as_posix() for path in written() if blocks_of((DOCS / path).read_text())]


def test_no_link_is_dead():
    dead = [line for path in markdown_files() for line in dead_links(path)]
    assert not dead, "\n".join(dead)


def test_no_link_of_the_site_is_dead(tmp_path, monkeypatch):
    source = tmp_path / "source"
    assemble(source)
    monkeypatch.setattr(links, "ROOT", source)
    monkeypatch.setattr(links, "DOCS", source)
    dead = [line for path in sorted(source.rglob("*.md")) for line in dead_links(path)]
    assert not dead, "\n".join(dead)


@pytest.mark.parametrize("name", references.PAGES)
def test_reference_pages_are_up_to_date(name):
    assert (DOCS / name).read_text() == references.PAGES[name](), "run: python -m docsite references"


def test_a_dead_link_is_found(tmp_path, monkeypatch):
    shutil.copy(ROOT / "README.md", tmp_path)
    bench = tmp_path / "bench"
    bench.mkdir()
    shutil.copy(ROOT / "bench/README.md", bench)
    folder = shutil.copytree(DOCS, tmp_path / "docs")
    monkeypatch.setattr(links, "ROOT", tmp_path)
    monkeypatch.setattr(links, "DOCS", folder)
    page = folder / "no-such-page-of-a-test.md"
    page.write_text(
        "[a](nowhere.md) [b](concepts.md#nowhere) [c](../README.md) [d](concepts.md#changelog) [e](cli.md)"
        " [i](../bench/README.md#no-such-heading) [j](internals/benchmarks.md)\n"
        "[f](#heading-of-it) [g](#none)\n\n# Heading of `it`\n\n```text\n[h](nowhere.md)\n```\n"
    )
    found = [line.split(": ", 2)[1] for line in dead_links(page)]
    assert found == [
        "nowhere.md",
        "concepts.md#nowhere",
        "../README.md",
        "../bench/README.md#no-such-heading",
        "internals/benchmarks.md",
        "#none",
    ]
    assert slug("headrace topics add-partitions") == "headrace-topics-add-partitions"


def test_the_site_has_every_page_that_its_menu_names(tmp_path):
    assemble(tmp_path / "source")
    menu = set(re.findall(r'"([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text()))
    there = {path.relative_to(tmp_path / "source").as_posix() for path in (tmp_path / "source").rglob("*.md")}
    assert menu == there


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pictures_are_those_that_are_drawn(name):
    assert (pictures.FOLDER / f"{name}.svg").read_text() == pictures.svg(pictures.PICTURES[name]())


# -- references


def rows_of(page):
    return set(re.findall(r"^\| `([^`]+)`", page.read_text(), re.MULTILINE))


def test_every_configuration_is_in_the_reference():
    extension = TableExtension()
    declared = {
        *BrokerConfig({}, extension.broker_configs()).keys,
        *(key.name for key in extension.broker_configs()),
        *TOPIC_CONFIGS,
        *GROUP_CONFIGS,
        *(key.name for key in extension.topic_configs()),
    } - set(DECLARED)
    assert rows_of(DOCS / "configuration.md") == declared


def test_every_command_and_option_is_in_the_reference():
    page = references.command_line()
    for words, command in references.commands():
        assert f"# headrace {' '.join(words)}".rstrip() in page
        section = page.partition(f"# headrace {' '.join(words)}".rstrip() + "\n")[2].partition("\n#")[0]
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option in section, (words, option)
    assert {words for words, _ in references.commands()} >= {
        (),
        ("serve",),
        ("topics", "produce"),
        ("configs", "set"),
    }


def test_the_client_reference_has_everything_public_and_everything_public_has_words():
    page = references.client()
    for name in headrace.__all__:
        assert name == "spark" or re.search(rf"^#+ .*\b{name}\b", page, re.MULTILINE), name
    for owner in ("Connection", "Table", "Scan", "Admin", "KafkaAdmin", "SecurityAdmin"):
        for name, member in references.public_members(references.CONNECTION_PARTS[owner]):
            assert f"### {owner}.{name}\n" in page
            assert references.doc_of(owner, name, member), f"{owner}.{name} has no docstring"
    for name in headrace.__all__:
        each = getattr(headrace, name)
        if isinstance(each, type):
            silent = [
                m for m, member in references.public_members(each) if not references.doc_of(name, m, member)
            ]
            assert not silent, f"{name}: no docstring: {silent}"


# -- blocks


def test_blocks_are_found_with_their_expected_output():
    text = (
        "a\n<!-- run -->\n```sh\nls\n```\n\n<!-- prints -->\n```text\nx\n...\n```\n"
        "```sh\nnot this\n```\n<!-- run: spark -->\n```python\np\n```\n"
    )
    assert blocks_of(text) == [Block("sh", "ls\n", "", 2, "x\n...\n"), Block("python", "p\n", "spark", 15)]
    assert is_like("x\ny \nz\n", "x\n...\n")
    assert is_like("x\n", "x\n")
    assert not is_like("x\ny\n", "x\n")
    assert not is_like("y\n", "x\n...\n")


def commands_of(code: str) -> Iterator[tuple[str, list[str], str]]:
    """Yield each line of the shell as (what is piped into it, words after `headrace`, the line).

    There are no words in a line that only a shell understands. A here-document keeps its block together.
    """
    lines = [code] if "<<" in code else code.splitlines(keepends=True)
    line = ""
    for each in lines:
        line += each
        try:
            tokens = list(shlex.shlex(line, posix=True, punctuation_chars=True))
        except ValueError:
            continue  # a quote is open
        if line.endswith(("\\\n", "|\n")):
            continue
        before, _, after = line.rpartition("|") if tokens.count("|") == 1 else ("", "", line)
        words = shlex.split(after)
        operators = {token for token in tokens if set(token) <= set("();<>|&")} - {"|"}
        is_ours = words[:1] == ["headrace"] and not operators and "$(" not in line and "$PWD" not in line
        yield (before, words[1:], line) if is_ours else ("", [], line)
        line = ""
    assert not line, f"the last line is incomplete: {line}"


def test_lines_of_the_shell_are_told_from_those_of_the_command():
    code = """headrace sql -e "SELECT 1;
  SELECT '|' AS x"
printf 'a|b\\n' |
  headrace topics produce t --key 'k v'
headrace sql -e x || echo no
headrace topics list | sort
cat t > u
"""
    found = [(before.strip(), words) for before, words, _ in commands_of(code)]
    assert found == [
        ("", ["sql", "-e", "SELECT 1;\n  SELECT '|' AS x"]),
        ("printf 'a|b\\n'", ["topics", "produce", "t", "--key", "k v"]),
        ("", []),
        ("", []),
        ("", []),
    ]
    assert [words for _, words, _ in commands_of("cat <<E\nheadrace sql\nE\n")] == [[]]


class Newcomer:
    """Types the blocks of a page into one folder, against one server on a port that is free."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.servers: list[subprocess.Popen[str]] = []
        commands = folder / "bin"
        commands.mkdir()
        for name, module in (("headrace", "-m headrace.tablelayer.cli.main"), ("python", "")):
            command = commands / name
            command.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
            command.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{commands}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HEADRACE_SERVER": f"127.0.0.1:{self.port}",
            "COLUMNS": "200",
        }

    def type(self, block: Block) -> str:
        code = block.code.replace("127.0.0.1:9092", f"127.0.0.1:{self.port}")
        if block.how == "server":
            self._serve(code)
            return ""
        if block.language == "sql":
            return self._ask(block, ["sql"], code)
        if block.language == "python":
            return self._run(block, ["python", "-c", code])
        printed = ""
        for before, words, line in commands_of(code):
            given = self._run(block, ["bash", "-e", "-o", "pipefail", "-c", before]) if before else ""
            printed += (
                self._ask(block, words, given) if words else self._run(block, ["bash", "-e", "-c", line])
            )
        return printed

    def _run(self, block: Block, command: list[str]) -> str:
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=self.environment)
        assert done.returncode == 0, f"line {block.line}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _ask(self, block: Block, words: list[str], given: str) -> str:
        """Call `headrace` in this process: to start it takes longer than what it is asked."""
        with contextlib.chdir(self.folder):
            done = CliRunner(env=self.environment).invoke(app, words, input=given)
        assert done.exit_code == 0, f"line {block.line}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _serve(self, code: str) -> None:
        ((_, words, line),) = commands_of(code.replace("$PWD", str(self.folder)))
        assert words[:1] == ["serve"], line
        configured = "--config" in words  # where it listens stands there
        served = Serve(
            words[1:] if configured else [*words[1:], "--listen", f"127.0.0.1:{self.port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )
        self.servers.append(served)
        ready = served.stdout.readline()
        assert "is ready" in ready, served.communicate(timeout=10)

    def leave(self) -> None:
        for each in self.servers:
            each.terminate()
            each.communicate(timeout=300)


def follow(page: str, folder: Path, spark: bool) -> None:
    newcomer = Newcomer(folder)
    try:
        for block in blocks_of((DOCS / page).read_text()):
            if block.how == "spark" and not spark:
                continue
            printed = newcomer.type(block)
            if block.prints is not None:
                assert is_like(printed, block.prints), f"{page}, line {block.line} prints:\n{printed}"
    finally:
        newcomer.leave()


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a page has some dozens of commands, each of which starts Python
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "<!-- run: spark" not in (DOCS / page).read_text()]
)
def test_the_commands_of_a_page_work(page, tmp_path):
    follow(page, tmp_path, spark=False)


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- run: spark" in (DOCS / page).read_text()])
def test_the_spark_blocks_of_a_page_work(page, tmp_path):
    follow(page, tmp_path, spark=True)
