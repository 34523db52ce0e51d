"""The policy file of `weir keep`: defaults for all tables, and exceptions by pattern.

    every = "1m"                  # each table is looked at this often
    jobs = 2                      # jobs at once
    requests_per_second = 100     # at most, of all jobs together
    bytes_per_second = 50000000
    spark_bytes = 10000000000     # from here on compactions run on Spark

    [defaults]                    # fields of weir.KeepPolicy; false turns a job off
    take_over = "1h"
    compact = { generations = 8, age = "1h" }

    [[defaults.checkpoints]]
    name = "daily"
    every = "1d"
    keep = "14d"

    [[tables]]                    # every rule whose pattern fits applies, the last one wins
    match = "*/scratch/*"
    gc = "10m"

Errors name the file, the line and the setting.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from weir.durations import Duration, seconds
from weir.errors import InvalidInput
from weir.upkeep.compact.policy import CompactionPolicy
from weir.upkeep.due import CheckpointSchedule, KeepPolicy

_HEADER: Final = re.compile(r"\s*(\[\[|\[)\s*([A-Za-z0-9_.\- \"']+?)\s*\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_\-]+|\"[^\"]*\")\s*=")
_DURATIONS: Final = ("every", "find")
_COUNTS: Final = {
    "jobs": (range(1, 65), "a number from 1 to 64"),
    "requests_per_second": (range(1, sys.maxsize), "a whole number above 0"),
    "bytes_per_second": (range(1 << 16, sys.maxsize), "a whole number, at least 65536"),
    "spark_bytes": (range(sys.maxsize), "a number of bytes"),
}
"""What each may be, and how to say so."""
_OWN: Final = (*_DURATIONS, *_COUNTS)
_RULE: Final = tuple(f.name for f in fields(KeepPolicy))


@dataclass(frozen=True)
class Rule:
    """What the tables that match a pattern have in place of the defaults."""

    match: str
    skip: bool = False
    """They are left alone."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def fits(self, uri: str) -> bool:
        """True for a table whose URI, or the last part of it, matches."""
        return fnmatchcase(uri, self.match) or fnmatchcase(uri.rpartition("/")[2], self.match)


@dataclass(frozen=True)
class KeeperPolicy:
    """What a keeper does, and how much at once."""

    every: Duration = "1m"
    """How often each table is looked at."""
    find: Duration = "5m"
    """How often the prefixes are searched for new tables."""
    jobs: int = 2
    """Jobs at once, each on another table."""
    requests_per_second: int | None = None
    """Requests to stores that all jobs together make, on average; None: any number."""
    bytes_per_second: int | None = None
    """Bytes that all jobs together read and write, on average; None: any number."""
    spark_bytes: int | None = None
    """Waiting bytes of a table from which on its compaction runs on Spark; None: never."""
    defaults: KeepPolicy = field(default_factory=KeepPolicy)
    """For every table."""
    tables: Sequence[Rule] = ()
    """Exceptions; every rule that fits applies, in order."""

    def of(self, uri: str) -> KeepPolicy | None:
        """The policy for the table at `uri`; None: it is left alone."""
        found, skip = self.defaults, False
        for rule in self.tables:
            if rule.fits(uri):
                found, skip = replace(found, **rule.settings), rule.skip
        return None if skip else found


def load(path: Path) -> KeeperPolicy:
    """The policy in a file; `InvalidInput` names the file and the line of what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot read the policy {path}: {error}") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path} is not valid TOML: {error}") from error
    return _Reader(path, text).policy(content)


class _Reader:
    """Reads one file; knows the line of every setting."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = _lines(text)

    def policy(self, content: Mapping[str, Any]) -> KeeperPolicy:
        self._only(content, (*_OWN, "defaults", "tables"), ())
        found: dict[str, Any] = {}
        for name in _DURATIONS:
            if name in content:
                found[name] = self._duration(content[name], (name,))
        for name in _COUNTS:
            if name in content:
                found[name] = self._number(content[name], name)
        made = KeeperPolicy(**found)
        section = self._table(content.get("defaults", {}), ("defaults",))
        defaults = self._keep(KeepPolicy(), section, ("defaults",))
        rules = content.get("tables", [])
        if not isinstance(rules, list):
            raise self._wrong(("tables",), "write [[tables]], with two brackets")
        made = replace(made, defaults=defaults)
        return replace(
            made,
            tables=tuple(
                self._rule(self._table(rule, ("tables", n)), ("tables", n), defaults)
                for n, rule in enumerate(rules)
            ),
        )

    def _number(self, value: object, name: str) -> int:
        allowed, said = _COUNTS[name]
        if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
            raise self._wrong((name,), f"expected {said}, got {value!r}")
        return value

    def _rule(self, section: Mapping[str, Any], at: _At, defaults: KeepPolicy) -> Rule:
        settings = {k: v for k, v in section.items() if k not in ("match", "skip")}
        match, skip = section.get("match"), section.get("skip", False)
        if not isinstance(match, str) or not match:
            raise self._wrong((*at, "match"), 'a rule needs a pattern, e.g. match = "*/events"')
        if not isinstance(skip, bool):
            raise self._wrong((*at, "skip"), f"expected true or false, got {skip!r}")
        kept = self._keep(defaults, settings, at)
        return Rule(match, skip, {name: getattr(kept, name) for name in settings})

    def _keep(self, base: KeepPolicy, section: Mapping[str, Any], at: _At) -> KeepPolicy:
        self._only(section, _RULE, at)
        values: dict[str, Any] = {}
        for name, value in section.items():
            here = (*at, name)
            if name == "compact":
                values[name] = self._compact(value, here, base.compact)
            elif name == "checkpoints":
                values[name] = self._checkpoints(value, here)
            elif value is False and name in ("drop_expired", "take_over", "gc"):
                values[name] = None
            else:
                values[name] = self._duration(value, here)
        try:
            return replace(base, **values)
        except InvalidInput as error:
            raise self._wrong((*at, *list(section)[:1]), str(error)) from error

    def _compact(
        self, value: object, at: _At, base: CompactionPolicy | None
    ) -> CompactionPolicy | None:
        if value is False:
            return None
        section = self._table(value, at)
        self._only(section, tuple(f.name for f in fields(CompactionPolicy)), at)
        values: dict[str, Any] = {}
        for name, given in section.items():
            here = (*at, name)
            if name == "age":
                values[name] = None if given is False else self._duration(given, here)
            elif isinstance(given, bool) or not isinstance(given, int) or given < 1:
                raise self._wrong(here, f"expected a whole number above 0, got {given!r}")
            else:
                values[name] = given
        return replace(base or CompactionPolicy(), **values)

    def _checkpoints(self, value: object, at: _At) -> tuple[CheckpointSchedule, ...]:
        if not isinstance(value, list):
            raise self._wrong(at, "write [[...checkpoints]], with two brackets")
        made = []
        for n, each in enumerate(value):
            section = self._table(each, (*at, n))
            self._only(section, ("name", "every", "keep"), (*at, n))
            values = dict(section)
            if not isinstance(values.get("name"), str):
                raise self._wrong((*at, n), "a schedule needs a name")
            if values.get("keep") is False:
                values["keep"] = None
            for name in ("every", "keep"):
                if values.get(name) is not None:
                    values[name] = self._duration(values[name], (*at, n, name))
            try:
                made.append(CheckpointSchedule(**values))
            except InvalidInput as error:
                raise self._wrong((*at, n, "name"), str(error)) from error
        return tuple(made)

    def _duration(self, value: object, at: _At) -> float:
        try:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise InvalidInput(f"expected seconds or text such as '15m', got {value!r}")
            return seconds(value, name=str(at[-1]))
        except InvalidInput as error:
            raise self._wrong(at, str(error)) from error

    def _table(self, value: object, at: _At) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(at, f"expected a table of settings, got {value!r}")
        return value

    def _only(self, section: Mapping[str, Any], known: Sequence[str], at: _At) -> None:
        more = ("match", "skip") if at[:1] == ("tables",) and len(at) == 2 else ()
        for name in section:
            if name not in known and name not in more:
                choices = ", ".join((*more, *known))
                raise self._wrong((*at, name), f"there is no such setting; there are: {choices}")

    def _wrong(self, at: _At, problem: str) -> InvalidInput:
        """The error for what is at that place of the file."""
        where = next(
            (self._lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in self._lines), 1
        )
        name = ".".join(str(part) for part in at if isinstance(part, str))
        return InvalidInput(f"{self._path}, line {where}: {name}: {problem}")


_At = tuple[str | int, ...]
"""A place in the file: names of tables and settings, numbers of the members of arrays."""


def _lines(text: str) -> dict[_At, int]:
    """The line of every table and setting, as far as each begins on a line of its own."""
    found: dict[_At, int] = {}
    counts: dict[_At, int] = {}
    at: _At = ()
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line)
        if header is not None:
            at = _resolve(header[2], counts, is_array=header[1] == "[[")
            found.setdefault(at, number)
            continue
        key = _KEY.match(line)
        if key is not None:
            found.setdefault((*at, key[1].strip('"')), number)
    return found


def _resolve(dotted: str, counts: dict[_At, int], *, is_array: bool) -> _At:
    parts = [part.strip().strip("\"'") for part in dotted.split(".")]
    at: _At = ()
    for n, part in enumerate(parts):
        at = (*at, part)
        is_last = n == len(parts) - 1
        if is_last and is_array:
            counts[at] = counts.get(at, -1) + 1
        if at in counts:
            at = (*at, counts[at])
    return at
