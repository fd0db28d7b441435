"""Find the uses of the system that go around the ports: time, randomness, threads, files, sockets."""

from __future__ import annotations

import ast

BANNED = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep"},
    "random": None,
    "secrets": None,
    "uuid": {"uuid1", "uuid4"},
    "socket": None,
    "shutil": None,
    "tempfile": None,
    "glob": None,
    "mmap": None,
    "select": None,
    "fcntl": None,
    "subprocess": None,
    "threading": {"Thread", "Timer", "Event", "Condition", "Semaphore", "Barrier"},  # locks decide nothing
    "concurrent.futures": {"ThreadPoolExecutor", "ProcessPoolExecutor"},
    "asyncio": {"to_thread"},
    "os": {
        "open", "read", "write", "pread", "pwrite", "pwritev", "close", "fsync", "fdatasync", "stat", "scandir",
        "listdir", "mkdir", "makedirs", "remove", "unlink", "rmdir", "rename", "replace", "link", "symlink", "utime",
        "truncate", "ftruncate", "sendfile", "urandom", "walk",
    },
}  # fmt: skip
METHODS = {
    "mkdir", "unlink", "rmdir", "read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "exists", "is_dir",
    "is_file", "rglob", "glob", "touch", "hardlink_to", "symlink_to",
}  # fmt: skip
"""Methods of paths. Ports have some of the same name, so calls on a `…disk` or `…files` do not count."""


def touched(source: str) -> list[str]:
    """Return the uses of the system in a module, as `line: name`."""
    found: list[str] = []
    imported: dict[str, str] = {}
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module in BANNED:
            banned = BANNED[node.module]
            found += [
                f"{node.lineno}: from {node.module} import {each.name}"
                for each in node.names
                if banned is None or each.name in banned
            ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = imported.get(node.value.id)
            if module in BANNED:
                banned = BANNED[module]
                if banned is None or node.attr in banned:
                    found.append(f"{node.lineno}: {module}.{node.attr}")
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name) and function.id == "open":
                found.append(f"{node.lineno}: open()")
            if isinstance(function, ast.Attribute) and function.attr in METHODS:
                owner = ast.unparse(function.value)
                if not owner.endswith(("disk", "files")):
                    found.append(f"{node.lineno}: {owner}.{function.attr}()")
            if isinstance(function, ast.Attribute) and function.attr == "open" and _is_mode(node.args):
                found.append(f"{node.lineno}: {ast.unparse(function)}()")
            if isinstance(function, ast.Attribute) and function.attr == "run_in_executor":
                first = node.args[0]
                if isinstance(first, ast.Constant) and first.value is None:
                    found.append(f"{node.lineno}: a thread of asyncio's own")
    return found


def _is_mode(arguments: list[ast.expr]) -> bool:
    """Return whether the call opens a path; a port's method is given one."""
    return bool(arguments) and isinstance(arguments[0], ast.Constant) and isinstance(arguments[0].value, str)
