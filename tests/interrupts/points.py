"""Where CPython delivers a signal, and an exception raised exactly there.

CPython runs signal handlers when a function is entered or resumed, at the end of a loop, and when
a call of something that is not a Python function has returned; and inside calls that block, which
then did not happen. `Points` counts those places while one thread runs one call, in weir's frames
and in those of the standard library that weir waits in, and raises `KeyboardInterrupt` at one.
The exception appears where a signal's would: a C call that was interrupted afterwards has had its
effect, and the handlers that see it are those of the call's own instruction.
"""

import concurrent.futures
import contextlib
import dis
import functools
import queue
import sys
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import weir

WEIR = str(Path(weir.__file__).parent)
LIBRARY = {
    str(module.__file__) for module in (threading, queue, contextlib, concurrent.futures._base)
}
BLOCKING = {"acquire", "sleep", "get", "wait"}
TIMES = 2
"""How often a way is interrupted: a later turn of the same loop tells nothing new."""
CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION_EX"}
BACKWARD = {"JUMP_BACKWARD"}
WITH = {"BEFORE_WITH"}


@functools.cache
def _in_scope(filename: str) -> bool:
    return filename.startswith(WEIR) or filename in LIBRARY


@functools.cache
def _instructions(code: CodeType) -> dict[int, str]:
    return {one.offset: one.opname for one in dis.get_instructions(code)}


@functools.cache
def _handlers(code: CodeType) -> Callable[[int], Any]:
    table = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]

    def handler(offset: int) -> Any:
        return next((e.target for e in table if e.start <= offset < e.end), None)

    return functools.cache(handler)


def place_of(frame: FrameType) -> str:
    """The function and line that a frame is in: `weir.shard.state:WriterState.landed:301`."""
    path = frame.f_code.co_filename
    module = "weir" + path.removeprefix(WEIR) if path.startswith(WEIR) else Path(path).name
    module = module.removesuffix(".py").replace("/", ".")
    return f"{module}:{frame.f_code.co_qualname}:{frame.f_lineno}"


def _callers(frame: FrameType) -> Iterator[str]:
    """The functions and lines that led to a frame, up to weir's outermost."""
    caller = frame.f_back
    while caller is not None and _in_scope(caller.f_code.co_filename):
        yield f"{caller.f_code.co_qualname}:{caller.f_lineno}"
        caller = caller.f_back


class Points:
    """Notes the points that the calling thread passes in a `with` block; raises at `target`.

    A point is named by a hash of the way to it and how often that way was taken: "1c0ffee5.2". So
    it keeps its name when a trial takes another turn before it. `passed` has the way to each.
    """

    def __init__(self, target: str, tell: Callable[[str], None] = lambda _: None) -> None:
        self.target = target
        self.raised = False
        self.passed: dict[str, str] = {}
        self._times: Counter[str] = Counter()
        self._tell = tell
        self._called: dict[FrameType, int] = {}
        """Frames whose last instruction is a call, and the instruction's offset."""

    def __enter__(self) -> Self:
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        sys.settrace(None)
        sys.setprofile(None)
        self._called.clear()

    def _point(self, frame: FrameType, how: str) -> None:
        way = " < ".join([f"{place_of(frame)} {how}", *_callers(frame)])
        self._times[way] += 1
        if self._times[way] > TIMES:
            return
        name = f"{zlib.crc32(way.encode()):08x}.{self._times[way]}"
        self.passed[name] = way
        if name == self.target:
            self.raised = True
            self._tell(way)
            self._stop()
            raise KeyboardInterrupt(way)

    def _profile(self, frame: FrameType, event: str, callee: Any) -> None:
        if event == "c_call" and _in_scope(frame.f_code.co_filename):
            if callee.__name__ in BLOCKING:
                self._point(frame, f"during {callee.__name__}")
        elif event == "c_return" and _in_scope(frame.f_code.co_filename):
            if self._called.pop(frame, None) is not None:
                self._point(frame, f"after {callee.__name__}")
        elif event == "c_exception":
            self._called.pop(frame, None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event != "call":
            return None
        caller = frame.f_back
        if caller in self._called and frame.f_code.co_name not in ("__init__", "__new__"):
            at = self._called[caller]
            if _instructions(caller.f_code)[at] != "CALL_FUNCTION_EX":
                del self._called[caller]  # a Python function: its return is no point
        if not _in_scope(frame.f_code.co_filename):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._point(frame, "entry")
        return self._trace_inside

    def _trace_inside(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            called = self._called.pop(frame, None)
            if called is not None and _handlers(code)(called) == _handlers(code)(at):
                self._point(frame, "after a call")
            name = _instructions(code)[at]
            if name in CALLS:
                self._called[frame] = at
            elif name in BACKWARD:
                self._point(frame, "loop")
            elif name in WITH:
                self._point(frame, "entering with")
        else:
            self._called.pop(frame, None)
        return self._trace_inside


_LEFT_EARLY = ("<genexpr>", "Env.attempts", "RetryingStore._pauses")
"""Generators that their callers leave before the end."""


def strikes_generator(points: Points) -> bool:
    """True when the interrupt comes in one of those: CPython itself prints and ignores what is
    raised while it ends a generator."""
    way = points.passed.get(points.target, "").split(" < ")[0]
    return any(name in way for name in _LEFT_EARLY)
