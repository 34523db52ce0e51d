"""Errors of tasks and planners as the weir errors they were: Spark wraps them into tracebacks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import PySparkException

from weir import errors
from weir.errors import InvalidInput, WeirError

_LAST = re.compile(r"^\s*weir\.errors\.(\w+): (.*)$", re.MULTILINE)
_MODULE = re.compile(r"ModuleNotFoundError: No module named '(pyspark_weir|weir)[.\w]*'")


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Raise a weir error that comes out of Spark as itself, without the JVM's and worker's lines.

    The whole of it stays reachable as the error's cause.
    """
    try:
        yield
    except PySparkException as error:
        found = told(str(error))
        if found is None:
            raise
        raise found from error


def briefly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches; a weir error leaves without the lines of code that it came through.

    In a task: Spark puts its traceback before the message, and the message is all that helps.
    """
    try:
        yield from batches
        return
    except WeirError as error:
        found = error.with_traceback(None)
    found.__cause__ = found.__context__ = None
    raise found


def told(text: str) -> WeirError | None:
    """The weir error in the text of a Spark error, or None."""
    if _MODULE.search(text):
        return InvalidInput(WORKERS)
    found = _LAST.findall(text)
    if not found:
        return None
    kind, message = getattr(errors, found[-1][0], None), found[-1][1].strip()
    if isinstance(kind, type) and issubclass(kind, WeirError):
        try:
            return kind(message)
        except TypeError:  # more than a message, which did not travel
            return WeirError(message)
    return None


WORKERS = (
    "the Python of Spark's workers does not have weir: they run another interpreter than the"
    " driver. Set PYSPARK_PYTHON (and PYSPARK_DRIVER_PYTHON) in the environment, or"
    " spark.pyspark.python, to a Python that has lance-weir[spark] before the session starts; on a"
    " cluster install it on every node. A virtual environment must be the one the workers use"
)
