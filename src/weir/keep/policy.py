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
from typing import TYPE_CHECKING, Any, Final, TypeVar

from weir.durations import Duration, check_durations, seconds
from weir.errors import InvalidInput
from weir.upkeep.compact.policy import CompactionPolicy
from weir.upkeep.due import CheckpointSchedule, KeepPolicy

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
_HEADER: Final = re.compile(r"\s*(\[\[|\[)\s*([A-Za-z0-9_.\- \"']+?)\s*\]\]?\s*(?:#.*)?")
_FIELD: Final = re.compile(r"\w+\.(\w+): (.*)", re.DOTALL)
"""What a policy says of a setting that it refuses."""
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_\-]+|\"[^\"]*\")\s*=")
_DURATIONS: Final = ("every", "find")
_COUNTS: Final = {
    "jobs": (range(1, 65), "a number from 1 to 64"),
    "requests_per_second": (range(1, sys.maxsize), "a whole number above 0"),
    "bytes_per_second": (range(1 << 16, sys.maxsize), "a whole number, at least 65536"),
    "spark_bytes": (range(sys.maxsize), "a number of bytes"),
}
"""What each may be, and how to say so."""


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

    def __post_init__(self) -> None:
        check_durations(self, *_DURATIONS)
        if not seconds(self.every):
            raise InvalidInput("KeeperPolicy.every: must be above zero, or looks never end")
        for name, (allowed, said) in _COUNTS.items():
            value = getattr(self, name)
            if value is None and name != "jobs":
                continue
            if type(value) is not int or value not in allowed:
                raise InvalidInput(f"KeeperPolicy.{name}: expected {said}, got {value!r}")

    def of(self, uri: str) -> KeepPolicy | None:
        """The policy for the table at `uri`; None: it is left alone. `InvalidInput` when the rules
        that fit it cannot be one policy."""
        fitting = [rule for rule in self.tables if rule.fits(uri)]
        if fitting and fitting[-1].skip:
            return None
        settings: dict[str, Any] = {}
        for rule in fitting:
            settings |= rule.settings
        try:
            return replace(self.defaults, **settings)
        except InvalidInput as error:
            rules = ", ".join(repr(rule.match) for rule in fitting)
            raise InvalidInput(
                f"{error}; so say the rules {rules} of the policy together, which all fit {uri}"
            ) from error


def load(path: Path) -> KeeperPolicy:
    """The policy in a file; `InvalidInput` names the file and the line of what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        raise InvalidInput(f"cannot read the policy {path}: {said}") from error
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number or a nesting without end
        raise InvalidInput(f"{path} is not valid TOML: {error}") from error
    return _Reader(path, text).policy(content)


class _Reader:
    """Reads one file; knows the line of every setting."""

    def __init__(self, path: Path, text: str) -> None:
        self._path = path
        self._lines = _lines(text)

    def policy(self, content: Mapping[str, Any]) -> KeeperPolicy:
        own = {name: v for name, v in content.items() if name not in ("defaults", "tables")}
        made = self._with(KeeperPolicy(), own, (), also=("defaults", "tables"))
        section = self._table(content.get("defaults", {}), ("defaults",))
        defaults = self._keep(KeepPolicy(), section, ("defaults",))
        rules = content.get("tables", [])
        if not isinstance(rules, list):
            raise self._wrong(("tables",), "write [[tables]], with two brackets")
        return replace(
            made,
            defaults=defaults,
            tables=tuple(
                self._rule(self._table(rule, ("tables", n)), ("tables", n), defaults)
                for n, rule in enumerate(rules)
            ),
        )

    def _with(self, base: T, section: Mapping[str, Any], at: _At, *, also: Sequence[str] = ()) -> T:
        """`base` with those settings, which it checks itself; false is None. `also` are settings
        that others read."""
        known = [each.name for each in fields(base)]
        for name in section:
            if name not in known:
                choices = ", ".join(dict.fromkeys((*also, *known)))
                raise self._wrong((*at, name), f"there is no such setting; there are: {choices}")
        values = {name: None if v is False else v for name, v in section.items()}
        try:
            return replace(base, **values)
        except InvalidInput as error:
            named = _FIELD.fullmatch(str(error))
            name, said = named.groups() if named else (next(iter(section)), str(error))
            raise self._wrong((*at, name), said) from error

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
        also = ("match", "skip") if at[:1] == ("tables",) else ()
        values = dict(section)
        if values.get("compact", False) is not False:
            here = (*at, "compact")
            part = self._table(values["compact"], here)
            values["compact"] = self._with(base.compact or CompactionPolicy(), part, here)
        if "checkpoints" in values:
            values["checkpoints"] = self._checkpoints(values["checkpoints"], (*at, "checkpoints"))
        return self._with(base, values, at, also=also)

    def _checkpoints(self, value: object, at: _At) -> tuple[CheckpointSchedule, ...]:
        if not isinstance(value, list):
            raise self._wrong(at, "write [[...checkpoints]], with two brackets")
        made = []
        for n, each in enumerate(value):
            section = self._table(each, (*at, n))
            if "name" not in section:
                raise self._wrong((*at, n), "a schedule needs a name")
            made.append(self._with(CheckpointSchedule("unnamed"), section, (*at, n)))
        return tuple(made)

    def _table(self, value: object, at: _At) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(at, f"expected a table of settings, got {value!r}")
        return value

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
