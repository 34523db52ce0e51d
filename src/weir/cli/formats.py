"""The formats of files with rows, and the suffixes of their names."""

from __future__ import annotations

from typing import Final

INPUTS: Final = ("parquet", "csv", "jsonl", "arrow", "lance")
"""What `weir put` reads."""
OUTPUTS: Final = ("table", "jsonl", "csv", "arrow", "parquet")
"""What `weir scan` writes; a table is for people."""
STDIN: Final = "-"
SUFFIXES: Final = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".json": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".lance": "lance",
}
