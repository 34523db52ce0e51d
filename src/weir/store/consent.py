"""Where a table's records may lead: its own root, places that name it back, allowed places.

Anyone with write access to a table can make its records name any place, but cannot choose the URI
that the caller opened. So a place counts as the table's if an object *there* names that URI, or if
the caller allowed the place (`weir_allow` in the storage options).

Keeps
  G-13 no record leads a read, a write or a deletion to a place that neither knows the table nor
       was allowed
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from weir.errors import StoreDenied
from weir.store.open import normalize

ALLOW = "weir_allow"
"""Storage option: URI prefixes that records may lead to, separated by commas."""


def real_place(uri: str) -> str:
    """The one spelling of a place: a local path with its links resolved, or the URI itself."""
    return os.path.realpath(uri) if uri.startswith("/") else uri


def same_place(one: object, other: object) -> bool:
    """True for two URIs of one place; two local paths may lead to one folder."""
    if one == other:
        return True
    if not (isinstance(one, str) and isinstance(other, str)):
        return False
    return real_place(one) == real_place(other)


@dataclass(frozen=True)
class Consent:
    """The places to which the caller lets records of the table at `root` lead."""

    root: str
    allowed: tuple[str, ...] = ()
    is_closed: bool = False
    """True if a list was given: then naming the table is not enough for other places."""

    @classmethod
    def of(cls, root: str, storage_options: Mapping[str, str] | None) -> Consent:
        """The consent in the storage options; `InvalidInput` for a prefix that is not a URI."""
        given = {key.lower(): value for key, value in (storage_options or {}).items()}.get(ALLOW)
        prefixes = [prefix.strip() for prefix in str(given or "").split(",")]
        return cls(root, tuple(normalize(p) for p in prefixes if p), given is not None)

    def covers(self, place: str) -> bool:
        """True for a place at or below the table's root or an allowed prefix."""
        return any(_is_below(place, prefix) for prefix in (self.root, *self.allowed))

    def may_ask(self, place: str) -> bool:
        """True if weir may read at the place whether it names this table.

        False if a list was given and the place is not on it, and if the place would choose the
        account that the request goes to (`abfss://c@account/...`).
        """
        if self.covers(place):
            return True
        return not self.is_closed and _account(place) in ("", _account(self.root))

    def refused(self, place: str, why: str) -> StoreDenied:
        """The error for a place that neither knows the table nor was allowed."""
        return StoreDenied(
            f"{self.root}: its records name {place}, {why}. weir does not read or write there"
            f" without permission. If {place} is correct, allow it with the storage option"
            f" {ALLOW}={place} (--option on the command line)"
        )


def _is_below(place: str, prefix: str) -> bool:
    """Each is where its links lead: one below the root may lead to another table."""
    place, prefix = real_place(place), real_place(prefix)  # guard: G-13 test_inside_the_table
    return place == prefix or place.startswith(prefix.rstrip("/") + "/")


def _account(place: str) -> str:
    """The account that an abfss URI names; empty if the options or the environment choose it."""
    scheme, _, rest = place.partition("://")
    return rest.partition("/")[0].partition("@")[2] if scheme == "abfss" else ""
