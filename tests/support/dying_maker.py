"""What Spark's driver does of CREATE TABLE AS, in processes that are killed before each write.

    python -m tests.support.dying_maker ROOT buckets|identity STEP

Prints a line for each death: how the process ended, what was found afterwards, how a second run
ended, and what it left. Each is a fork; nothing of weir runs in the process that forks.
"""

import itertools
import json
import os
import signal
import sys
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

import weir
from weir.spark.catalog import answer
from weir.spark.places import Place
from weir.spark.sink import batch_writer
from weir.spark.types import spark_schema
from weir.store.local import LocalStore
from weir.testing.faults import WRITES

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
ROWS = 12


def make(root: str, how: str) -> None:
    """One CREATE TABLE AS, as the catalog in the JVM asks for it."""
    ask = {
        "weir.root": root,
        "weir.namespace": "db",
        "weir.name": "t",
        "weir.maker": str(uuid.uuid4()),
    }
    columns = spark_schema(SCHEMA)
    given = {"buckets": "2"} if how == "buckets" else {"shardby": "id"}
    with_key = {"weir.with.primarykey": "id", **{f"weir.with.{k}": v for k, v in given.items()}}
    answer({**ask, **with_key, "weir.ask": "create", "weir.schema": columns.json()})
    writer = batch_writer(ask, columns, overwrite=False)
    batch = pa.table({"id": range(ROWS), "n": range(ROWS)}, SCHEMA).to_batches()[0]
    writer.commit([writer.write(iter([batch.slice(i, ROWS // 2)])) for i in (0, ROWS // 2)])
    answer({**ask, "weir.ask": "complete"})


def found(root: str) -> str:
    """What anybody finds: nothing, or the number of rows."""
    uri = f"{root}/db/t.lance"
    names = weir.connect(root).tables("db")
    try:
        table = weir.open(uri)
    except weir.NotAWeirTable:
        assert not weir.exists(uri)
        assert names == []
        assert not answer({"weir.ask": "load", "path": uri}).fields
        return "nothing"
    assert weir.exists(uri)
    assert names == ["t"]
    assert table.primary_key == ("id",)
    assert Place(uri).current().count() == table.count()
    return str(table.count())


def dying(at: int) -> None:
    """This process is killed before the write of that number."""
    writes = itertools.count(1)

    def wrapped(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(writes) == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(*args, **kwargs)

        return call

    for name in WRITES:
        setattr(LocalStore, name, wrapped(getattr(LocalStore, name)))


def forked(work: Callable[[], object]) -> tuple[int, str]:
    """How a fork that does it ended, and what it says."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.write(writing, json.dumps(work()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


def main() -> None:
    folder, how, step = sys.argv[1:]
    code = -signal.SIGKILL
    for at in itertools.count(1, int(step)):
        if not code:
            return
        root = f"{folder}/{at}"
        code, _ = forked(partial(die, at, root, how))
        _, first = forked(partial(found, root))
        again = forked(partial(make, root, how))[0] if code else 0
        _, second = forked(partial(found, root))
        told = [code, json.loads(first or "null"), again, json.loads(second or "null")]
        sys.stdout.write(json.dumps(told) + "\n")


def die(at: int, root: str, how: str) -> None:
    """Make it, and be killed before the write of that number."""
    dying(at)
    make(root, how)


if __name__ == "__main__":
    main()
