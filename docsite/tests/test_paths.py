"""Paths in backticks lead somewhere: pages and docstrings name files that exist."""

from docsite.links import markdown_files
from docsite.paths import dead_modules, dead_paths, sources


def test_paths_in_backticks_exist():
    dead = [line for page in markdown_files() for line in dead_paths(page)]
    assert not dead, "\n".join(dead)


def test_modules_in_docstrings_and_comments_exist():
    named = [source for source in sources() if "tests" not in source.parts]
    dead = [line for source in named for line in dead_modules(source)]
    assert not dead, "\n".join(dead)


def test_a_module_that_does_not_exist_is_found(tmp_path):
    source = tmp_path / "source.py"
    source.write_text(
        '"""See `paths.py` and `docsite/links.py`,\n`docsite/no_path.py`, `site/paths.py`."""\n'
    )
    assert [line.partition(": there")[0].removeprefix(f"{tmp_path}/") for line in dead_modules(source)] == [
        "source.py:2: `docsite/no_path.py`",
        "source.py:2: `site/paths.py`",
    ]


def test_a_path_that_does_not_exist_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`docsite/paths.py`, `docs/`, `mutants/*.toml`,"
        " `docsite/tests/test_paths.py::test_paths_in_backticks_exist`\n"
        "exist; `docsite/no_path.py` and `mutants/*.xml` do not.\n\n"
        "```sh\nls `docsite/nowhere.py`\n```\n"
        "`docsite/tests/test_paths.py::test_nothing` is not a test, `text/html` and `docs/ and more` are not paths.\n"
    )
    assert [line.partition(": there")[0].removeprefix(f"{tmp_path}/") for line in dead_paths(page)] == [
        "page.md:2: `docsite/no_path.py`",
        "page.md:2: `mutants/*.xml`",
        "page.md:7: `docsite/tests/test_paths.py::test_nothing`",
    ]
