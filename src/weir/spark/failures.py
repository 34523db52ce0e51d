"""Recover the weir errors of tasks and planners, which Spark wraps into tracebacks."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import pyarrow as pa
from pyspark.errors import PySparkException

from weir import errors
from weir.errors import InvalidInput, WeirError

_LAST = re.compile(r"^\s*weir\.errors\.(\w+): (.*)$", re.MULTILINE)
_MODULE = re.compile(
    r"ModuleNotFoundError: No module named '(pyspark_weir|weir|pyarrow|lance|msgspec)[.\w]*'"
)
"""weir, and what every installation of it has."""


@contextlib.contextmanager
def unwrap_errors() -> Iterator[None]:
    """Re-raise a weir error that Spark wrapped, without the lines of the JVM and the worker.

    Spark's whole error stays available as its cause.
    """
    try:
        yield
    except PySparkException as error:
        found = weir_error_in(str(error))
        if found is None:
            raise
        raise found from error


def without_traceback(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same batches; a weir error is raised without its traceback.

    For use in a task: Spark prints the traceback before the message, and only the message helps.
    """
    try:
        yield from batches
        return
    except WeirError as error:
        found = error.with_traceback(None)
    found.__cause__ = found.__context__ = None
    raise found


def weir_error_in(text: str) -> WeirError | None:
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
        except TypeError:  # it needs more than a message, and the rest did not travel
            return WeirError(message)
    return None


WORKERS = (
    "Spark's workers cannot import weir: their Python is not the driver's, or lance-weir[spark] is"
    " not installed there. Set PYSPARK_PYTHON (and PYSPARK_DRIVER_PYTHON) in the environment to a"
    " Python that has it, before the session starts; spark.pyspark.python is heard by spark-submit"
    " alone. On a cluster install it on every node"
)
