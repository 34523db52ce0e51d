"""Expiry of rows: changing the rule, and dropping rows that have expired.

Dropping cannot be undone, so it uses the store's clock (F-18), as collection does: a machine whose
clock runs ahead hides rows too early, but drops none.
"""

from __future__ import annotations

from weir.format.expiry import Expire, alive_at
from weir.lake.api import Base
from weir.routing.core import Core


def set_expire(core: Core, expire: Expire | None) -> None:
    """See `Table.set_expire`."""
    core.record_number()  # C-16
    core.base()  # guard: L-8 test_overwritten_base
    core.lake.set_expire(expire)


def drops_at(core: Core, base: Base) -> float:
    """The store's time for a table whose rows expire; otherwise 0, when none has expired."""
    return 0.0 if base.expire is None else core.store.now()


def drop_expired(core: Core) -> int:
    """Delete the expired rows of the base and return their number, 0 for a table without a rule.

    A small write for the store's clock, and a commit of the base if any rows have expired.
    """
    base = core.base()
    rule = base.expire
    if rule is None:
        return 0
    alive = alive_at(rule, drops_at(core, base), base.schema.plain.field(rule.column))
    assert alive is not None, "a rule says who lives"
    return core.lake.drop_expired(base.version, alive)
