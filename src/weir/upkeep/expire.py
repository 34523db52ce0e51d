"""Rows that expire: the change of the rule, and the dropping of those that have.

Dropping cannot be undone, so it goes by the store's clock (F-18), as collection does: a machine
whose clock runs ahead hides rows too early, and drops none.
"""

from __future__ import annotations

from typing import cast

from weir.format.expiry import Expire, alive_at
from weir.lake.api import Base
from weir.lake.pylance_lake import PylanceLake
from weir.routing.core import Core


def set_expire(core: Core, expire: Expire | None) -> None:
    """See `Table.set_expire`."""
    cast("PylanceLake", core.lake).set_expire(expire)


def drops_at(core: Core, base: Base) -> float:
    """The time of the store's clock, for a table whose rows expire; else 0, at which none has."""
    return 0.0 if base.expire is None else core.store.now()


def drop_expired(core: Core) -> int:
    """Delete the rows of the base that have expired; how many. Nothing on a table without a rule.

    A small write for the store's clock, and a commit of the base if there are any.
    """
    base = core.base()
    rule = base.expire
    if rule is None:
        return 0
    alive = alive_at(rule, drops_at(core, base), base.schema.plain.field(rule.column))
    assert alive is not None, "a rule says who lives"
    return cast("PylanceLake", core.lake).drop_expired(base.version, alive)
