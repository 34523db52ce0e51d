"""Tables that weir 0.1.0 made (commit 89bac35), and the rows they hold."""

import json
import tarfile
from pathlib import Path
from typing import Any

import weir

ARCHIVE = Path(__file__).parent.parent / "fixtures" / "weir-0.1.0.tar.gz"


def unpack(place: Path) -> Path:
    """Unpack the tables below `place`; the folder that holds them."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(place, filter="data")
    return place / "weir-0.1.0"


def expected(old: Path, name: str) -> list[dict[str, Any]]:
    """The rows that the table `name` must hold."""
    rows: list[dict[str, Any]] = json.loads((old / "expected.json").read_text())[name]
    return rows


def rows(table: weir.Table, key: str = "id", **options: Any) -> list[dict[str, Any]]:
    """The rows of a scan, sorted by key."""
    return sorted(table.scan(**options).to_table().to_pylist(), key=lambda row: row[key])
