"""The schema of `weir create`: columns as `NAME:TYPE`, or those of a file."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from weir.cli.options import usage
from weir.format.type_texts import parse_column


def parse(columns: Sequence[str], key: Sequence[str]) -> pa.Schema:
    """Parse a schema; a column marked `!` or in the key is not nullable."""
    with usage("--column"):
        return require(pa.schema([parse_column(text) for text in columns]), key)


def require(schema: pa.Schema, key: Sequence[str]) -> pa.Schema:
    """The same schema, without nulls in the key."""
    return pa.schema([f.with_nullable(f.nullable and f.name not in key) for f in schema])
