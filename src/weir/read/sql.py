"""Whole SQL queries over a table, by DuckDB or DataFusion, whichever is installed.

Keeps
  L-5  a query reads one snapshot, however often it names the table
The engines see a pyarrow Dataset of the scan, and nothing else: no files, no variables of the
caller, nothing that could be changed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Final, Literal, get_args

import pyarrow as pa

from weir.errors import InvalidInput, WeirError
from weir.lake.params import bind, require_text
from weir.read.dataset import ScanDataset
from weir.read.reader import SnapshotReader
from weir.read.scan import Scan, with_snapshot
from weir.read.snapshot import Freshness, Pinned
from weir.routing.core import Core
from weir.types import Params

Engine = Literal["duckdb", "datafusion"]
"""The engines that can run `Table.sql`."""
ENGINES: Final[tuple[Engine, ...]] = get_args(Engine)
ALIAS: Final = "t"
"""What every table is called, besides its own name."""

Run = Callable[[str, Params | None, ScanDataset, list[str]], pa.Table]


def run_sql(
    core: Core,
    query: str,
    *,
    params: Params | None,
    freshness: Freshness,
    pinned: Pinned | None,
    engine: Engine | None,
) -> pa.Table:
    """See `Table.sql`."""
    require_text(query, "a query")
    run = _RUNS[_engine(engine)]
    names = list(dict.fromkeys([ALIAS, own_name(core.uri)]))

    def read(reader: SnapshotReader) -> pa.Table:
        failures: list[WeirError] = []
        rows = ScanDataset(Scan(core, freshness=freshness, pinned=reader.snapshot), failures)
        try:
            return run(query, params, rows, names)
        except WeirError:
            raise
        except Exception as error:
            if failures:
                raise failures[0] from error  # what an engine makes of it says less
            raise InvalidInput(f"{core.uri}: the query failed: {error}") from error

    return with_snapshot(core, freshness, pinned, read)


def own_name(uri: str) -> str:
    """The name of a table: the last part of its place."""
    return uri.rstrip("/").rpartition("/")[2].removesuffix(".lance") or ALIAS


def _engine(engine: Engine | None) -> Engine:
    if engine is not None and engine not in ENGINES:
        raise InvalidInput(f"engine must be one of {list(ENGINES)}, got {engine!r}")
    wanted = ENGINES if engine is None else (engine,)
    for name in wanted:
        if _is_installed(name):
            return name
    needed = "DuckDB or DataFusion" if engine is None else engine
    package = "'lance-weir[sql]'" if engine in (None, "duckdb") else "datafusion"
    raise InvalidInput(
        f"table.sql needs {needed}, which is not installed: pip install {package}. Without it,"
        " read with table.scan(columns, filter)"
    )


def _is_installed(name: Engine) -> bool:
    try:
        if name == "duckdb":
            return importlib.util.find_spec("duckdb") is not None
        return importlib.util.find_spec("datafusion") is not None
    except ValueError:  # hidden by the application
        return False


_DUCKDB: Final = {
    "enable_external_access": "false",  # no files, no other databases, no downloads
    "python_enable_replacements": "false",  # no variables of the caller
    "lock_configuration": "true",
}


def _duckdb(query: str, params: Params | None, rows: ScanDataset, names: list[str]) -> pa.Table:
    import duckdb

    with duckdb.connect(":memory:", config=dict(_DUCKDB)) as connection:
        kinds = [statement.type for statement in connection.extract_statements(query)]
        allowed = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        if len(kinds) != 1 or kinds[0] not in allowed:
            raise InvalidInput(_ONE_QUERY)
        for name in names:
            connection.register(name, rows)
        found = connection.sql(query, params=None if params is None else dict(params))
        if found is None:
            raise InvalidInput(_ONE_QUERY)
        return found.to_arrow_table()


def _datafusion(query: str, params: Params | None, rows: ScanDataset, names: list[str]) -> pa.Table:
    import datafusion

    context = datafusion.SessionContext()
    # Its SQL folds a name without quotes to lower case. With a dot it would name another schema.
    for name in sorted({*names, *map(str.lower, names)}):
        quoted = name.replace('"', '""')
        context.register_dataset(f'"{quoted}"', rows)
    options: Any = datafusion.SQLOptions()
    only = options.with_allow_ddl(False).with_allow_dml(False).with_allow_statements(False)
    # Its literals are Lance's, which is built on it.
    bound = query if params is None else bind(query, params)
    return context.sql_with_options(bound, only).to_arrow_table()


_ONE_QUERY: Final = (
    "table.sql takes one query that reads, and changes nothing: SELECT, WITH or EXPLAIN. Write with"
    " table.writer()"
)
_RUNS: Final[dict[Engine, Run]] = {"duckdb": _duckdb, "datafusion": _datafusion}
