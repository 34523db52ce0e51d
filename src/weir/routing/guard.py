"""The guard against rivals: shards outside the routing that take rows of its values (X-3).

The order between a rival's rows and those of the routing's own shard is not known. So a rival is
never ignored and never merged silently: reads show the routed rows first and warn, writers of the
value are refused, compaction leaves both shards alone, and an operator decides by
`weir.upkeep.adopt_shard`. A rival is recognised by its id, when that is LanceDB's for the value, or
by what its manifest says under the current sharding. Sealed shards are no rivals: they take no more
rows, and theirs are older than the routing's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from weir.env import Env
from weir.errors import InvalidInput
from weir.format.manifest import ShardManifest, Status
from weir.format.sharding import (
    Identity,
    Value,
    lancedb_id,
    shard_id,
    value_from_entries,
    values_of,
)
from weir.routing.core import CONCURRENCY, Core

logger = logging.getLogger("weir.routing")

IDENTITY_CHECKS_MAX: Final = 64
"""Maximum number of shards that a handle's first writer checks in a table sharded by identity. If
there are more it checks none; readers do, and the doctor."""


@dataclass(frozen=True, slots=True)
class Rival:
    """A shard of another program, beside the one that the routing sends the same rows to."""

    shard: UUID
    routed: UUID
    value: Value

    def __str__(self) -> str:
        return (
            f"another program, such as LanceDB, writes rows of value {self.value!r} to shard"
            f" {self.shard}, but the routing sends them to shard {self.routed}; which row of a key"
            " is newer is unknown"
        )


class SeenShards:
    """What a handle has found out about shards that its record does not explain."""

    def __init__(self, env: Env) -> None:
        """Use `known_rivals`."""
        self.rivals: dict[UUID, Value] = {}
        self.no_rivals: set[UUID] = set()
        """Those that are none, and cannot become one."""


def known_rivals(core: Core) -> dict[UUID, Value]:
    """The rivals that this handle has seen, with the value whose rows each takes. No request."""
    return core.attached.of(SeenShards).rivals


def find_rivals(core: Core, manifests: Iterable[ShardManifest | None]) -> list[Rival]:
    """The rivals among those shards; warns of each once. No request for shards that name their
    value; for others a few requests, once."""
    found, known = [], known_rivals(core)
    for manifest in manifests:
        rival = None if manifest is None else _rival(core, manifest)
        if rival is None:
            continue
        found.append(rival)
        if rival.shard not in known:
            known[rival.shard] = rival.value
            logger.warning("shard.rival table=%s: %s", core.uri, rival)
    return found


def look_for_rivals(core: Core) -> None:
    """Find the rivals of a table that is about to be written, as its readers would (X-3).

    One listing. Two requests for each shard that the record does not explain, the first time; with
    identity sharding it explains none. `require_no_rival` also finds a rival with LanceDB's id.
    """
    if not core.record.primary_key:
        return
    record, known = core.record, {route.shard for route in core.record.routing}
    for version, sharding in record.former:
        if not isinstance(sharding, Identity):  # all sealed before the record changed (C-11)
            known |= {shard_id(sharding, v, version) for v in values_of(sharding)}
    no_rivals = core.attached.of(SeenShards).no_rivals
    strange = [s for s in core.shard_ids() if s not in known and s not in no_rivals]
    by_identity = isinstance(record.sharding, Identity)
    if by_identity and len(strange) > IDENTITY_CHECKS_MAX:
        return
    looked = core.env.threads.map(
        lambda shard: core.log(shard).latest(), strange, workers=CONCURRENCY
    )
    rivals = {rival.shard for rival in find_rivals(core, looked)}
    for manifest in looked:
        if manifest is None or manifest.shard_id in rivals:
            continue
        # The value of a shard never changes once its manifest names it.
        if manifest.status is Status.SEALED or (by_identity and manifest.field_entries):
            no_rivals.add(manifest.shard_id)


def _rival(core: Core, manifest: ShardManifest) -> Rival | None:
    if manifest.status is not Status.ACTIVE or not core.record.primary_key:
        return None  # rows of an append-only table have no order to lose
    if not manifest.writer_epoch:
        return None  # made by a reshard that is under way; nobody has written to it
    shard, sharding = manifest.shard_id, core.record.sharding
    if isinstance(sharding, Identity):
        claimed = _of_identity(core, manifest, sharding)
    elif any(route.shard == shard for route in core.record.routing):
        return None
    else:
        claimed = _of_routing(core, manifest)
    if claimed is None or core.route(claimed[0]) == shard:
        return None
    return Rival(shard, core.route(claimed[0]), claimed[0])


def _of_identity(core: Core, manifest: ShardManifest, sharding: Identity) -> tuple[Value] | None:
    """The value whose rows it takes; None when it is of another sharding, or not known."""
    shard = manifest.shard_id
    if manifest.field_entries or core.route(None) == shard:
        dtype = core.identity_type(sharding)
        claimed: tuple[Value] | None = (
            value_from_entries(sharding, manifest.field_entries, dtype),
        )
    else:
        claimed = core.unnamed_value(shard, manifest, sharding)
    if claimed is None or core.route(claimed[0]) == shard:
        return claimed
    is_named = bool(manifest.field_entries) and _is_current(core, manifest)
    return claimed if is_named or _lancedb_id(core, claimed[0]) == shard else None


def _of_routing(core: Core, manifest: ShardManifest) -> tuple[Value] | None:
    for route in core.record.routing:
        if _lancedb_id(core, route.value) == manifest.shard_id:
            return (route.value,)
    if not manifest.field_entries or not _is_current(core, manifest):
        return None
    value = value_from_entries(core.record.sharding, manifest.field_entries, None)
    return (value,) if any(route.value == value for route in core.record.routing) else None


def _is_current(core: Core, manifest: ShardManifest) -> bool:
    """True when its field entries are of the current sharding; others mean nothing."""
    return core.record.spec != 0 and manifest.shard_spec_id == core.record.spec


def _lancedb_id(core: Core, value: Value) -> UUID | None:
    return lancedb_id(core.record.sharding, value, core.identity_type(core.record.sharding, value))


def require_no_rival(core: Core, shard: UUID, value: Value) -> None:
    """`InvalidInput` when another shard takes rows of the value (X-3).

    Checks the rivals that this handle has seen and, where LanceDB's id for the value is not the
    shard's own, whether a shard with that id exists.
    """
    seen = known_rivals(core).items()
    known = [rival for rival, of in seen if of == value and type(of) is type(value)]
    named = _lancedb_id(core, value)
    # guard: X-3 test_shared_tables
    if core.record.primary_key and named not in (None, shard, *known):
        assert named is not None, "just compared"
        known.append(named)
    for other in known:
        manifest = core.log(other).latest()
        rival = None if manifest is None else _rival(core, manifest)
        if rival is not None and rival.routed == shard:
            raise InvalidInput(
                f"{core.uri}: {rival}. Stop that program, then fold its shard: weir adopt-shard"
                f" {core.uri} {rival.shard} --as newer (or --as older)"
            )
