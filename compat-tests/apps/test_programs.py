"""Applications from registries, without fetching one."""

from __future__ import annotations

from pathlib import Path

from apps.programs import copy_writable


def test_the_copy_of_a_read_only_tree_can_be_changed_and_removed(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "main.go").write_text("package main")
    for path in (source / "inner" / "main.go", source / "inner", source):
        path.chmod(0o444 if path.is_file() else 0o555)
    copy_writable(source, target)
    copied = [target, target / "inner", target / "inner" / "main.go"]
    for path in (source, source / "inner"):
        path.chmod(0o755)
    assert copied[-1].read_text() == "package main"
    assert all(path.stat().st_mode & 0o200 for path in copied)
