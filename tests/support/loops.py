"""A loop that must not wait: the store, Lance and large conversions refuse its thread."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import lance
import pytest

from tests.support.tables import VERBS
from weir.log.intake import Intake
from weir.log.small_put import as_small_put
from weir.store.local import LocalStore


class BlockedLoop(BaseException):
    """Something slow was called in the thread of an event loop; nothing may catch it."""


def _runs_a_loop() -> bool:
    return asyncio._get_running_loop() is not None


def _guarded(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(call)
    def run(*args: Any, **options: Any) -> Any:
        if _runs_a_loop():
            raise BlockedLoop(name)
        return call(*args, **options)

    return run


def refuse_in_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on these raise `BlockedLoop` in the thread of a running loop."""
    for verb in set(VERBS).intersection(dir(LocalStore)):
        monkeypatch.setattr(LocalStore, verb, _guarded(getattr(LocalStore, verb), verb))
    for name in ("dataset", "write_dataset"):
        monkeypatch.setattr(lance, name, _guarded(getattr(lance, name), f"lance.{name}"))
    for name in ("scanner", "to_table", "count_rows", "take", "checkout_version", "get_fragments"):
        call = getattr(lance.LanceDataset, name)
        monkeypatch.setattr(lance.LanceDataset, name, _guarded(call, f"LanceDataset.{name}"))
    for name in ("rows", "tombstones"):
        monkeypatch.setattr(Intake, name, _large_refused(getattr(Intake, name), name))


def _large_refused(convert: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(convert)
    def run(self: Intake, data: Any, *args: Any, **options: Any) -> Any:
        if _runs_a_loop() and as_small_put(data) is None:
            raise BlockedLoop(f"Intake.{name} of {type(data).__name__}")
        return convert(self, data, *args, **options)

    return run
