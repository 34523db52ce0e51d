"""Stores on which a test may create a table."""

import itertools
from collections.abc import Callable
from typing import NamedTuple


class StoreKind(NamedTuple):
    """One kind of store: URIs for new tables, and their storage options."""

    uri_factory: Callable[[], str]
    storage_options: dict[str, str]


def numbered(root: str) -> Callable[[], str]:
    """URIs under `root`, a new one at every call."""
    numbers = itertools.count(1)
    return lambda: f"{root}/table-{next(numbers)}"
