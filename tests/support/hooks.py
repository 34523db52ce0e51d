"""A store that lets a test act right after one of its calls."""

from collections.abc import Callable
from typing import Any

from weir.store.api import Store


class HookStore:
    """Calls `action` once, after the first call of `verb` whose first argument contains `part`."""

    def __init__(self, inner: Store, verb: str, part: str, action: Callable[[], None]) -> None:
        self._inner = inner
        self._verb = verb
        self._part = part
        self._action: Callable[[], None] | None = action

    def arm(self, action: Callable[[], None]) -> None:
        """Run `action` after the next matching call."""
        self._action = action

    def wait_for(self, part: str) -> None:
        """Match calls that contain `part` instead."""
        self._part = part

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if name != self._verb:
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return value(*args, **kwargs)
            finally:
                action = self._action
                if action is not None and self._part in str(args[0]):
                    self._action = None
                    action()

        return call
