"""`weir doctor`: checks that the installation is complete and the store keeps its promises."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
from rich.text import Text

import weir
from weir.cli import output, settings
from weir.cli.invocation import Invocation, command
from weir.errors import InvalidInput, NotAWeirTable, WeirError

_PACKAGES = ("lance-weir", "pylance", "pyarrow", "obstore", "protobuf", "numpy")
_SKEW_S = 5.0


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: str
    """ok, note or bad."""
    detail: str


@command("doctor", example="weir doctor s3://lake/orders")
@click.argument("uri", required=False, metavar="URI", help="A table, or the place for a new one.")
def doctor(call: Invocation, uri: str | None) -> None:
    """Check the installation, a store, a table.

    With a URI, checks the store and the table there. Tests put-if-absent with concurrent
    writes under _weir/probe/, and removes what it wrote.
    """
    found = list(_installation(call.config))
    if uri is not None:
        found += _place(uri, call.storage(uri))
    bad = [finding for finding in found if finding.state == "bad"]
    rows = [(_mark(finding.state), finding.name, finding.detail) for finding in found]
    call.out.show({"ok": not bad, "findings": found}, output.grid("", "what", "found", rows=rows))
    if bad:
        raise WeirError(f"{bad[0].name}: {bad[0].detail}")


def _mark(state: str) -> Text:
    return Text(state, {"ok": "good", "note": "warn"}.get(state, "bad"))


def _installation(config: Path | None) -> Iterator[Finding]:
    from weir.lake.supported import require_supported

    yield Finding("python", "ok", f"{platform.python_version()} {sys.executable}")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    yield Finding("packages", "ok", ", ".join(versions))
    try:
        require_supported()
    except InvalidInput as error:
        yield Finding("pylance", "bad", str(error))
    yield _spark()
    file = settings.config_file(config)
    yield Finding("configuration", "ok", str(file or f"none ({settings.default_path()})"))


def _spark() -> Finding:
    try:
        pyspark = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return Finding("spark", "note", "not installed: pip install 'lance-weir[spark]'")
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return Finding(
            "spark", "note", f"pyspark {pyspark}, but no Java: set JAVA_HOME to a Java 17"
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    return Finding("spark", "ok", f"pyspark {pyspark}, {answer.stderr.splitlines()[0]}")


def _place(uri: str, options: dict[str, str]) -> Iterator[Finding]:
    from weir.env import SYSTEM
    from weir.store import probe
    from weir.store.api import is_local
    from weir.store.open import FSYNC, open_store

    names = ", ".join(sorted(options)) or "none given"
    yield Finding("storage options", "ok", f"{names} (values are never shown)")
    try:
        store = open_store(uri, options)
        made = _missing_folders(store.uri)
        report = probe.probe(store)
    except (WeirError, OSError) as error:
        yield Finding("store", "bad", str(error))
        return
    for check in report.checks:
        state = "ok" if check.passed else "bad"
        yield Finding(check.name, state, check.detail or output.span(check.took))
    medians = ", ".join(f"{verb} {output.span(s)}" for verb, s in report.latencies.items())
    yield Finding("one request", "ok", medians)
    if is_local(store):
        synced = options.get(FSYNC, "false").lower() in ("true", "1")
        yield Finding(
            "power loss",
            "ok" if synced else "note",
            "rows are on the disk when a put returns (weir_fsync)"
            if synced
            else f"a put survives a crash, not a loss of power; -o {FSYNC}=true syncs each entry",
        )
    skew = store.now() - SYSTEM.clock.wall()
    yield Finding(
        "clock",
        "ok" if abs(skew) < _SKEW_S else "note",
        f"the store's clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this"
        " host's",
    )
    yield from check_table(uri, options)
    for folder in made:
        with contextlib.suppress(OSError):  # only if it is empty: a table may have been made since
            folder.rmdir()


def _missing_folders(uri: str) -> list[Path]:
    """The folders that a write to a local store makes, innermost first."""
    if "://" in uri:
        return []
    place = Path(uri)
    return [folder for folder in (place, *place.parents) if not folder.exists()]


def check_table(uri: str, options: dict[str, str]) -> Iterator[Finding]:
    """What is found about the table there, if there is one."""
    from weir.upkeep.health import find_problems

    try:
        table = weir.open(uri, storage_options=options)
        stats = table.stats()
    except NotAWeirTable:
        yield Finding("table", "note", "none here yet: weir create or weir enable")
        return
    except WeirError as error:
        yield Finding("table", "bad", f"{type(error).__name__}: {error}")
        return
    yield Finding(
        "table",
        "ok",
        f"{output.many(len(stats.shards), 'shard')}, {stats.base_rows:,} base rows,"
        f" {stats.lag:,} entries unflushed, {output.many(stats.generations, 'SSTable')} to compact",
    )
    for found in find_problems(table.core):
        yield Finding(found.name, found.state, found.detail)
