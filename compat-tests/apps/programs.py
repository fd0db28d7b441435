"""Applications from their registries, in a folder of the user's cache by version, without installation or rights.

apt downloads Debian's packages with their missing dependencies, which are unpacked into a folder. Jars come from Maven
Central by Ivy (`bench.maven`), Python packages into environments of their own (`environments`), Go programs from their
modules.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from bench.maven import cache_root, java, made_once
from headrace.tablelayer.spark.ivy import MIRROR_VARIABLE, ivy_jar

INSTALL_SECONDS = 1200
_FIXED = ("HOME", "PATH", "LANG", "TMPDIR")


class UnavailableError(Exception):
    """An application is not available here; the text says why, in few words."""


@dataclass(frozen=True)
class Unpacked:
    """Debian packages in a folder."""

    root: Path

    def program(self, path: str) -> str:
        return str(self.root / path)

    def folder(self, path: str) -> Path:
        return self.root / path

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for its programs: their libraries are beside them."""
        libraries = [
            each for part in ("usr/lib", "lib") for each in sorted((self.root / part).rglob("lib*.so*"))
        ]
        folders = dict.fromkeys(each.parent for each in libraries)
        return {
            **{name: os.environ[name] for name in _FIXED if name in os.environ},
            "LD_LIBRARY_PATH": ":".join(map(str, folders)),
        }


def debian(name: str, packages: Sequence[str]) -> Unpacked:
    """Return these packages with their dependencies. Raise UnavailableError without apt, or with apt's message."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnavailableError("Debian's packages need apt-get and dpkg-deb")
    digest = hashlib.sha256("\n".join(packages).encode()).hexdigest()[:12]
    folder = cache_root() / "apps" / f"{name}-{digest}"

    def unpack() -> None:
        archives = folder / "archives"
        (archives / "partial").mkdir(parents=True)
        options = [f"Dir::Cache::archives={archives}", "Debug::NoLocking=true", "APT::Sandbox::User="]
        words = [word for option in options for word in ("-o", option)]
        words += ["install", "--download-only", "--reinstall", "--no-install-recommends", "-qq", "-y"]
        _run(f"{name} cannot be downloaded", ["apt-get", *words, *packages])
        for archive in sorted(archives.glob("*.deb")):
            _run(f"{archive.name} cannot be unpacked", ["dpkg-deb", "-x", str(archive), str(folder / "root")])
        shutil.rmtree(archives)

    return Unpacked(made_once(folder, unpack) / "root")


def copy_writable(source: Path, target: Path) -> None:
    """Copy a tree that is read-only, as Go's cache of modules is. The copy can be changed and removed by its owner."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for folder, _, _ in os.walk(target):
        Path(folder).chmod(0o755)  # `copytree` copies the rights of folders


def go_program(name: str, module: str, version: str, package: str, tags: str) -> Path:
    """Build a program of a Go module with the module's own requirements. Raise UnavailableError."""
    go = shutil.which("go")
    if go is None:
        raise UnavailableError("Go is not installed")
    digest = hashlib.sha256(f"{module} {version} {package} {tags}".encode()).hexdigest()[:12]
    folder = cache_root() / "apps" / f"{name}-{digest}"

    def build() -> None:
        found = _run(
            f"{module} cannot be had", [go, "mod", "download", "-json", f"{module}@{version}"], folder
        )
        with_source, binary = folder / "source", str(folder / name)
        copy_writable(Path(json.loads(found)["Dir"]), with_source)
        _run(
            f"{name} cannot be built",
            ["nice", "-n", "19", go, "build", "-tags", tags, "-ldflags", "-s -w", "-o", binary, package],
            with_source,
            {"GOFLAGS": "-mod=mod -trimpath", "CGO_ENABLED": "0"},
        )
        shutil.rmtree(with_source)

    return made_once(folder, build) / name


def _run(
    failure: str, command: Sequence[str], cwd: Path | None = None, more: Mapping[str, str] | None = None
) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **(more or {})},
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{failure}: it took more than {INSTALL_SECONDS} s") from None
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise UnavailableError(f"{failure}: {' '.join(last)[:200]}")
    return done.stdout


def maven_file(organisation: str, artifact: str, version: str, classifier: str, extension: str) -> Path:
    """Fetch one file that Maven has beside an artifact's jar, such as a distribution. Raise UnavailableError."""
    folder = cache_root() / "apps" / f"{artifact}-{version}-{classifier}"
    wanted = folder / f"{artifact}-{version}.{extension}"
    jar, root = ivy_jar(), os.environ.get(MIRROR_VARIABLE)
    if jar is None:
        raise UnavailableError("pyspark came without its jars, of which one fetches from Maven")
    at = "" if root is None else f" root={quoteattr(root.rstrip('/') + '/')}"

    def fetch() -> None:
        (folder / "settings.xml").write_text(
            '<ivysettings><settings defaultResolver="repository"/><resolvers>'
            f'<ibiblio name="repository" m2compatible="true" usepoms="false"{at}/></resolvers></ivysettings>\n'
        )
        (folder / "ivy.xml").write_text(
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
            '<info organisation="headrace" module="x"/>'
            '<configurations><conf name="default"/></configurations><dependencies>'
            f'<dependency org="{organisation}" name="{artifact}" rev="{version}" transitive="false" conf="default->*">'
            f'<artifact name="{artifact}" type="{extension}" ext="{extension}" m:classifier="{classifier}"/>'
            "</dependency></dependencies></ivy-module>\n"
        )
        command = [java(), "-jar", str(jar), "-settings", "settings.xml", "-ivy", "ivy.xml", "-retrieve"]
        _run(f"{artifact} cannot be fetched", [*command, "[artifact]-[revision].[ext]"], folder)
        if not wanted.exists():
            raise UnavailableError(f"{artifact} {version} has no {classifier}.{extension} in the registry")

    made_once(folder, fetch)
    return wanted
