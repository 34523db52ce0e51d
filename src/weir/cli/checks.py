"""What `weir doctor` checks: the installation, a store, a table."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import weir
from weir.cli import output, settings
from weir.env import SYSTEM
from weir.errors import InvalidInput, NotAWeirTable, WeirError
from weir.lake.supported import require_supported
from weir.store import probe
from weir.store.api import is_local
from weir.store.open import FSYNC, open_store
from weir.upkeep.health import Health, find_problems

_PACKAGES = ("lance-weir", "pylance", "pyarrow", "obstore", "protobuf", "numpy")
_SKEW_S = 5.0


def check_installation(config: Path | None) -> Iterator[Health]:
    """The interpreter, the packages, Java, the configuration."""
    yield Health("python", "ok", f"{platform.python_version()} {sys.executable}")
    versions = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    yield Health("packages", "ok", ", ".join(versions))
    try:
        require_supported()
    except InvalidInput as error:
        yield Health("pylance", "bad", str(error))
    yield _spark()
    file = settings.config_file(config)
    yield Health("configuration", "ok", str(file or f"none ({settings.default_path()})"))


def _spark() -> Health:
    try:
        pyspark = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return Health("spark", "note", "not installed: pip install 'lance-weir[spark]'")
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or not Path(java).exists():
        return Health(
            "spark", "note", f"pyspark {pyspark}, but no Java: set JAVA_HOME to a Java 17"
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)  # noqa: S603
    return Health("spark", "ok", f"pyspark {pyspark}, {answer.stderr.splitlines()[0]}")


def check_place(uri: str, options: dict[str, str]) -> Iterator[Health]:
    """The store there, and the table if there is one."""
    names = ", ".join(sorted(options)) or "none given"
    yield Health("storage options", "ok", f"{names} (values are never shown)")
    try:
        store = open_store(uri, options)
        made = _missing_folders(store.uri)
        report = probe.probe(store)
    except (WeirError, OSError) as error:
        yield Health("store", "bad", str(error))
        return
    for check in report.checks:
        said = check.detail or output.span(check.took)
        yield Health(check.name, "ok" if check.passed else "bad", said)
    medians = ", ".join(f"{verb} {output.span(s)}" for verb, s in report.latencies.items())
    yield Health("one request", "ok", medians)
    if is_local(store):
        synced = options.get(FSYNC, "false").lower() in ("true", "1")
        yield Health(
            "power loss",
            "ok" if synced else "note",
            "rows are on the disk when a put returns (weir_fsync)"
            if synced
            else f"a put survives a crash, not a loss of power; -o {FSYNC}=true syncs each entry",
        )
    skew = store.now() - SYSTEM.clock.wall()
    yield Health(
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


def check_table(uri: str, options: dict[str, str]) -> Iterator[Health]:
    """What is found about the table there, if there is one."""
    try:
        table = weir.open(uri, storage_options=options)
        stats = table.stats()
    except NotAWeirTable:
        yield Health("table", "note", "none here yet: weir create or weir enable")
        return
    except WeirError as error:
        yield Health("table", "bad", f"{type(error).__name__}: {error}")
        return
    yield Health(
        "table",
        "ok",
        f"{output.many(len(stats.shards), 'shard')}, {stats.base_rows:,} base rows,"
        f" {stats.lag:,} entries unflushed, {output.many(stats.generations, 'SSTable')} to compact",
    )
    yield from find_problems(table.core)
