"""Trying again while the store is down, on top of the store's own retries.

Keeps
  M-3  what failed stays where it is until it succeeds; it is neither dropped nor overtaken
  F-11 an outcome that is not known is not tried again
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from weir.env import Env
from weir.errors import StoreDenied, StoreError

T = TypeVar("T")

ROUNDS: Final = 8
"""Rounds of the store's own retries before the writer gives up on the store."""
DELAY_MAX: Final = 5.0


def persist(
    env: Env, act: Callable[[], T], *, delay: float, failed: Callable[[int, StoreError], None]
) -> T:
    """The answer of `act`, which is tried again when the store certainly did nothing.

    `failed(attempt, error)` is told each time. Refused credentials are not tried again.
    """
    for attempt in range(1, ROUNDS):
        try:
            return act()
        except StoreDenied:
            raise
        except StoreError as error:
            failed(attempt, error)
            env.clock.sleep(delay * (0.5 + env.random.random()))
            delay = min(DELAY_MAX, delay * 2)
    try:
        return act()
    except StoreError as error:
        failed(ROUNDS, error)
        raise
