"""A value worked out when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

T = TypeVar("T")


class Lazy(Generic[T]):
    """`functools.cached_property` without its lock, which until Python 3.12 is one for all objects
    of the class: levels that are searched side by side would wait for each other, and one that
    waits for another lock meanwhile, for ever. Asked by two threads at once it is worked out twice.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> Self | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._make(instance)
        return value
