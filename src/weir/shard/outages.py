"""Retries while the store is down, on top of the store's own retries.

Keeps
  M-3  a failed operation stays in place until it succeeds; it is neither dropped nor overtaken
  F-11 an operation whose outcome is unknown is not retried
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from weir.env import Env
from weir.errors import StoreDenied, StoreError

T = TypeVar("T")

ROUNDS: Final = 8
"""Rounds of the store's own retries before the writer gives up on the store."""
DELAY_MAX: Final = 5.0


def retry_outage(
    env: Env, act: Callable[[], T], *, delay: float, failed: Callable[[int, StoreError], None]
) -> T:
    """Return the result of `act`, which is retried when the store certainly did nothing.

    `failed(attempt, error)` is called after each failure. Refused credentials are not retried.
    """
    attempts: Iterator[int] | None = None  # begun with the first failure: most calls have none
    attempt = 1
    while True:
        try:
            return act()
        except StoreDenied:
            raise
        except StoreError as error:  # guard: M-3
            if attempts is None:
                # Twice the delay, of which a pause takes any part.
                longest = 2 * DELAY_MAX
                attempts = env.attempts(ROUNDS, first_delay=2 * delay, longest_delay=longest)
                attempt = next(attempts)
            failed(attempt, error)
            if attempt == ROUNDS:
                raise
            attempt = next(attempts)  # after a pause
