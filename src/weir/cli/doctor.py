"""`weir doctor`: checks that the installation is complete and the store keeps its promises."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

import weir
from weir.cli import options as o
from weir.cli import screen, settings
from weir.env import SYSTEM
from weir.errors import InvalidInput, NotAWeirTable, WeirError
from weir.lake.supported import require_supported
from weir.store.api import ObjectMissing, is_local
from weir.store.open import FSYNC, open_store
from weir.store.probe import probe
from weir.upkeep.health import find_problems

_PACKAGES = ("lance-weir", "pylance", "pyarrow", "obstore", "protobuf", "numpy")
_SKEW_S = 5.0


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    state: str
    """ok, note or bad."""
    detail: str


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command(
        epilog="Example: [bold]weir doctor s3://lake/orders[/bold]", rich_help_panel="Upkeep"
    )(doctor)


def doctor(
    uri: Annotated[
        str | None, typer.Argument(help="A table, or the place for a new one.", metavar="URI")
    ] = None,
    option: o.Options = None,
    config: o.Config = None,
    json: o.Json = False,
) -> None:
    """Check the installation, a store, a table.

    With a URI, checks the store and the table there. Tests put-if-absent with concurrent
    writes under _weir/probe/, and removes what it wrote.
    """
    found = list(_installation(config))
    if uri is not None:
        found += _place(uri, settings.storage_options(uri, option, config))
    bad = [finding for finding in found if finding.state == "bad"]
    if json:
        screen.emit({"ok": not bad, "findings": found})
    else:
        marks = {"ok": "[good]ok[/]", "note": "[warn]note[/]", "bad": "[bad]bad[/]"}
        view = screen.grid("", "what", "found")
        for finding in found:
            view.add_row(marks[finding.state], finding.name, escape(finding.detail))
        screen.out().print(view)
    if bad:
        screen.complain(f"{bad[0].name}: {bad[0].detail}")
        raise typer.Exit(1)


def _installation(config: Path | None) -> Iterator[Finding]:
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
    names = ", ".join(sorted(options)) or "none given"
    yield Finding("storage options", "ok", f"{names} (values are never shown)")
    try:
        store = open_store(uri, options)
        report = probe(store)
    except (WeirError, OSError) as error:
        yield Finding("store", "bad", str(error))
        return
    except ObjectMissing as error:
        yield Finding("store", "bad", f"nothing can be written there: {error}")
        return
    for check in report.checks:
        state = "ok" if check.passed else "bad"
        yield Finding(check.name, state, check.detail or screen.span(check.took))
    medians = ", ".join(f"{verb} {screen.span(s)}" for verb, s in report.latencies.items())
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
    yield from _table(uri, options)


def _table(uri: str, options: dict[str, str]) -> Iterator[Finding]:
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
        f"{screen.many(len(stats.shards), 'shard')}, {stats.base_rows:,} base rows,"
        f" {stats.lag:,} entries unflushed, {screen.many(stats.generations, 'SSTable')} to compact",
    )
    for found in find_problems(table.core):
        yield Finding(found.name, found.state, found.detail)
