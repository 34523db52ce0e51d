"""Text queries beyond "any of these words": `weir.Match`, `weir.Phrase`, `weir.Boolean`.

They mean and score the same as Lance's queries of these names; see docs/guides/search.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, Union

from weir.errors import InvalidInput


@dataclass(frozen=True)
class Match:
    """Rows with any of the words ("or", as for plain text), or with all of them ("and")."""

    text: str
    operator: Literal["or", "and"] = "or"

    def __post_init__(self) -> None:
        _require_text("Match", self.text)
        if self.operator not in ("or", "and"):
            raise InvalidInput(f"operator of Match must be 'or' or 'and', got {self.operator!r}")


@dataclass(frozen=True)
class Phrase:
    """Rows with the words one after another, in this order."""

    text: str

    def __post_init__(self) -> None:
        _require_text("Phrase", self.text)


@dataclass(frozen=True)
class Boolean:
    """Rows that match every query of `must` and none of `must_not`.

    Without `must`, rows match at least one of `should`; with it, `should` only adds to the score.
    """

    must: Sequence[Words] = ()
    should: Sequence[Words] = ()
    must_not: Sequence[Words] = ()

    def __post_init__(self) -> None:
        for name in ("must", "should", "must_not"):
            given = getattr(self, name)
            if isinstance(given, str | Match | Phrase | Boolean):
                given = (given,)
            for query in given:
                if not isinstance(query, str | Match | Phrase | Boolean):
                    raise InvalidInput(
                        f"{name} of Boolean takes text, Match, Phrase or Boolean, got {query!r}"
                    )
            object.__setattr__(self, name, tuple(given))
        if not self.must and not self.should:
            raise InvalidInput(
                "Boolean needs a query in must or should; must_not only excludes rows"
            )


Words: TypeAlias = Union[str, Match, Phrase, Boolean]  # noqa: UP007  named before they are defined
"""A query for a search in a text column."""


def _require_text(name: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"{name} takes text, got {text!r}")
