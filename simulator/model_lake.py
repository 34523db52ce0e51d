"""A model of `weir.lake.api.Lake`: SSTables and base versions are plain objects, no Rust threads.

The scheduler does not control pylance's own threads and randomness, so the mass runs use this in
its place. It keeps the same contract (tests/contract holds both to it): an SSTable is complete or
not there, a base version is a put-if-absent of the next number, a fold planned before a fence
cannot be committed after it, and a fold counts from its commit on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from simulator.model_base import ModelBase, ModelSsTable, decode, encode
from weir.errors import CommitConflict, MissingEntry, SnapshotExpired, StoreError
from weir.format import paths
from weir.format.base_manifest import MemWalDetails
from weir.format.keys import pk_values
from weir.format.schema import TOMBSTONE, TableSchema
from weir.keys.keyset import newest_rows
from weir.lake.api import Cleaned, Lake, SsTableInfo
from weir.lake.base.fence import FENCE, check_fence
from weir.lake.base.fold import BaseFence, VersionEdit
from weir.lake.base.fold_commit import FOLD
from weir.lake.base.history import Commit
from weir.lake.base.indexes import TableIndex
from weir.lake.base.versions import RESTORE
from weir.store.api import LostAnswer, ObjectExists, ObjectMissing, Store

_ATTEMPTS: Final = 20


def _number(path: str) -> int:
    return int(path.rpartition("/")[2].partition(".")[0])


def _not_modelled(*_args: Any, **_options: Any) -> Any:
    """No simulated history does this."""
    raise AssertionError("the model has no such verb")


class ModelLake(Lake):
    """The Lance side of one table, as a model. Safe to share between threads of one actor."""

    is_lance = False
    add_columns = drop_columns = rename_column = set_expire = drop_expired = _not_modelled
    plan_files = rewrite_files = commit_files = _not_modelled
    create_index = drop_index = optimize_indices = _not_modelled
    read_commits = mem_wal_at = _not_modelled

    def __init__(
        self,
        store: Store,
        schema: TableSchema,
        open_store: Callable[[str], Store] | None = None,
        file_tag: str = "",
    ) -> None:
        self.uri = store.uri
        self.store = store
        self._schema = schema
        self._open_store = open_store
        self._file_tag = file_tag
        """Makes names of data files differ where ids are equal: Lance draws its own names."""

    # -- SSTables --------------------------------------------------------------------------------

    def write_sstable(
        self,
        shard: UUID,
        name: str,
        batches: Sequence[pa.RecordBatch],
        schema: TableSchema,
        *,
        after_write: Any = None,
    ) -> SsTableInfo:
        """Write two objects, the data last; publishes nothing. The model has no indexes."""
        rows = pa.Table.from_batches(batches, schema.wal)
        if schema.primary_key:
            rows = rows.take(pa.array(newest_rows(pk_values(rows, schema.primary_key))))
        folder = paths.sstable_dir(shard, name)
        try:
            # Created, not put: two processes may draw the same name (F-17).
            claim = f"{name}{self._file_tag}".encode()
            self.store.put_if_absent(f"{folder}/{paths.SSTABLE_CLAIM}", claim)
            self.store.put_if_absent(f"{folder}/data.arrow", encode({"name": name}, rows))
        except ObjectExists:
            raise StoreError(f"{self.uri}/{folder}: an SSTable is there already") from None
        return SsTableInfo(rows.num_rows, rows.nbytes, None)

    def open_sstable(self, shard: UUID, name: str, schema: TableSchema) -> ModelSsTable:
        """Open for reading."""
        return ModelSsTable(self.store, paths.sstable_dir(shard, name), schema)

    # -- versions of the base --------------------------------------------------------------------

    def create_base(self) -> int:
        """An empty base."""
        header = {"version": 0, "marked": {}, "noted": {}, "properties": {}}
        empty = ModelBase(header, self._schema.plain.empty_table(), self._schema)
        return self._commit(empty, {"kind": "create"})

    def open_base(self, version: int | None = None) -> ModelBase:
        """The latest version, or that one."""
        for _ in range(_ATTEMPTS):
            number = max(self._versions(), default=0) if version is None else version
            try:
                data = self.store.get(self._path(number)).data
            except ObjectMissing:
                if version is None:
                    continue  # cleaned up since it was listed, so there is a newer one
                break
            header, rows = decode(data)
            return ModelBase(header, self._borrowed(header, rows), self._schema)
        raise MissingEntry(f"{self.uri}: base version {version} is gone")

    def written_versions(self) -> dict[int, float]:
        """Each version that is still there, and when it was written."""
        _, objects = self.store.list_folder("_versions")
        return {_number(meta.path): meta.last_modified for meta in objects}

    def _borrowed(self, header: Mapping[str, Any], rows: pa.Table) -> pa.Table:
        """The rows of a version; a clone borrows them from its parent, and loses them with it."""
        tie = header.get("borrowed")
        if tie is None:
            return rows
        assert self._open_store is not None, "a clone of a table nobody can reach"
        path = f"_versions/{tie['version']:020d}.model"
        try:
            return decode(self._open_store(tie["uri"]).get(path).data)[1]
        except ObjectMissing:
            raise MissingEntry(f"{self.uri} shares {tie['uri']}/{path}, which is gone") from None

    def shallow_clone(self, destination: Store, version: int) -> int:
        """Create a version there that refers to this one's rows. Idempotent."""
        header, rows = decode(self.store.get(self._path(version)).data)
        tie = header.get("borrowed") or {"uri": self.uri, "version": version}
        body = encode({**header, "borrowed": tie}, rows.slice(0, 0))
        try:
            destination.put_if_absent(self._path(version), body)
        except ObjectExists:
            if destination.get(self._path(version)).data != body:
                raise CommitConflict(f"{destination.uri}: another base is there") from None
        return version

    def restore(self, version: int, checkpoint: str | None = None) -> int:
        """Commit that version's content as the latest; without a checkpoint, as others do."""
        old = self.open_base(version)
        named = {} if checkpoint is None else {RESTORE: checkpoint}

        def commit(base: ModelBase) -> int:
            header = {**old.header, "version": base.version}
            borrowed = header.get("borrowed") is not None
            kept = ModelBase(header, old.table.slice(0, 0) if borrowed else old.table, self._schema)
            return self._commit(kept, {"kind": "restore", **named})

        return self._rebased(commit)

    def replace_mem_wal(
        self, details: MemWalDetails, *, planned_at: int, properties: Mapping[str, str]
    ) -> int:
        """Change the sharding in the MemWAL entry; never on top of another change of that entry."""
        specs = [spec.spec_id for spec in details.sharding_specs]
        try:
            target = self.open_base(planned_at)
            for _ in range(_ATTEMPTS):
                try:
                    return self._commit(target, {**properties, "kind": "config"}, specs=specs)
                except ObjectExists:
                    target = self.open_base(target.version + 1)
                    if target.properties["kind"] not in {"fold", "fence"}:
                        break
        except MissingEntry:  # cleaned up since: no damage; Lance reports a conflict too
            raise CommitConflict(f"{self.uri}: others went on since {planned_at}") from None
        raise CommitConflict(f"{self.uri}: its MemWAL entry was changed since {planned_at}")

    def check_version(self, version: int) -> None:
        """Raise `SnapshotExpired` when that version is gone."""
        if self.store.head(self._path(version)) is None:
            raise SnapshotExpired(f"{self.uri}: base version {version} is gone")

    def protect_version(self, name: str, version: int) -> None:
        """Keep a version from clean-up: a tag. Idempotent."""
        try:
            self.store.put_if_absent(f"_refs/tags/{name}", str(version).encode())
        except ObjectExists:
            if self.protected_versions().get(name) != version:
                raise CommitConflict(f"{self.uri}: tag {name} protects another version") from None

    def release_version(self, name: str) -> None:
        """Undo `protect_version`. Idempotent."""
        self.store.delete([f"_refs/tags/{name}"])

    def protected_versions(self) -> dict[str, int]:
        """Each tag and the version it protects; lists again if a tag goes before it is read."""
        while True:
            found = {}
            try:
                for meta in self.store.list("_refs/tags"):
                    found[meta.path.rpartition("/")[2]] = int(self.store.get(meta.path).data)
            except ObjectMissing:
                continue
            return found

    def cleanup_old_versions(
        self,
        replaced_for: timedelta,
        *,
        keep_from: int | None = None,
        dry_run: bool = False,
        released: Collection[str] = (),
    ) -> Cleaned:
        """Remove versions nothing protects; the latest, and `keep_from` on, stay."""
        versions = sorted(self._versions())
        tags = self.protected_versions().items()
        kept = {*(v for tag, v in tags if tag not in released), *versions[-1:]}
        gone = [v for v in versions if v not in kept and (keep_from is None or v < keep_from)]
        if gone and not dry_run:
            self.store.delete([self._path(version) for version in gone])
        return Cleaned(len(gone), 0)

    def indexes(self) -> list[TableIndex]:
        """None."""
        return []

    def schema_for_writing(self) -> TableSchema:
        """The table's schema, which never changes here."""
        return self._schema

    # -- folding ---------------------------------------------------------------------------------

    def write_changes(self, name: str, rows: pa.Table) -> VersionEdit:
        """Write the rows of a fold, with deletes marked; commits nothing."""
        if not rows.num_rows:
            return VersionEdit()
        path = f"data/{name}{self._file_tag}.model"
        self.store.put(path, encode({"name": name}, rows))
        return VersionEdit(added=(json.dumps({"files": [{"path": path}]}),))

    def fence_base(self, token: str) -> int:
        """Commit a version that changes nothing; folds planned before it can no longer commit."""
        return self._rebased(lambda base: self._commit(base, {FENCE: token, "kind": "fence"}))

    def commit_fold(
        self,
        changes: VersionEdit,
        *,
        claim: BaseFence,
        planned_at: int,
        fold_id: str,
        properties: Mapping[str, str],
        folded: Mapping[UUID, int] | None = None,
        number: int = 0,
        hide: Any = None,
    ) -> int:
        """Commit rows, properties and note, once; never on top of a fence or another fold."""
        for commit in self.commits(after=claim.fenced_at):
            if commit.version <= planned_at:
                check_fence(self.uri, claim.token, commit)
        files = [json.loads(text)["files"][0]["path"] for text in changes.added]
        planned = self.open_base(planned_at)
        rows = self._folded(planned, files)
        told = {**properties, FOLD: fold_id, "kind": "fold"}
        target = planned
        for _ in range(_ATTEMPTS):
            done = self.find_commit(FOLD, fold_id, after=planned_at)
            if done is not None:
                return done
            try:
                noted = {str(s): g for s, g in {**target.compacted, **(folded or {})}.items()}
                last = {"number": number} if number else {}
                return self._commit(target, told, rows=rows, noted=noted, borrowed=None, **last)
            except ObjectExists:
                target = self.open_base(target.version + 1)
                if target.properties["kind"] not in {"mark", "config"}:
                    raise CommitConflict(
                        f"{self.uri}: preempted by {target.properties['kind']} at {target.version}"
                    ) from None
            except LostAnswer as lost:
                fenced = self.fence_base(claim.token)
                done = self.find_commit(FOLD, fold_id, after=planned_at)
                if done is None or done > fenced:
                    raise StoreError(
                        f"{self.uri}: fold {fold_id} was not applied: {lost}"
                    ) from lost
                return done
        raise CommitConflict(f"{self.uri}: others keep committing")

    def _folded(self, base: ModelBase, files: Sequence[str]) -> pa.Table:
        plain, key = self._schema.plain, self._schema.primary_key
        rows = base.table.cast(plain)
        for file in files:
            fresh = decode(self.store.get(file).data)[1]
            live = fresh.filter(pc.invert(fresh.column(TOMBSTONE))).select(plain.names)
            if key:
                gone = set(pk_values(fresh, key).to_pylist())
                kept = [k not in gone for k in pk_values(rows, key).to_pylist()]
                rows = rows.filter(pa.array(kept, pa.bool_()))
            rows = pa.concat_tables([rows, live.cast(plain)])
        return rows

    def mark_compacted(self, marks: Mapping[UUID, int]) -> int | None:
        """Raise the marks; never lower one."""

        def commit(base: ModelBase) -> int:
            due = {str(s): g for s, g in marks.items() if g > base.marked.get(s, 0)}
            if not due:
                return 0
            return self._commit(base, {"kind": "mark"}, marked={**base.header["marked"], **due})

        return self._rebased(commit) or None

    def commits(self, *, after: int, until: int | None = None) -> Iterator[Commit]:
        """The commit of each version above `after`, newest first."""
        newest = self.open_base().version if until is None else until
        for version in range(newest, after, -1):
            try:
                properties = self.open_base(version).properties
            except MissingEntry as gone:
                raise SnapshotExpired(f"{self.uri}: version {version} was cleaned up") from gone
            yield Commit(version, properties, is_restore=properties["kind"] == "restore")

    # -- inside ----------------------------------------------------------------------------------

    def _versions(self) -> list[int]:
        return list(self.written_versions())

    def _path(self, version: int) -> str:
        return f"_versions/{version:020d}.model"

    def _rebased(self, commit: Callable[[ModelBase], int]) -> int:
        for _ in range(_ATTEMPTS):
            try:
                return commit(self.open_base())
            except ObjectExists:
                continue
        raise CommitConflict(f"{self.uri}: others keep committing")

    def _commit(
        self,
        base: ModelBase,
        properties: dict[str, str],
        rows: pa.Table | None = None,
        **change: Any,
    ) -> int:
        """Write the version after `base` with those changes, or raise `ObjectExists`."""
        version = base.version + 1
        header = {**base.header, **change, "version": version, "properties": properties}
        if rows is None:
            shared = header.get("borrowed") is not None
            rows = base.table.slice(0, 0) if shared else base.table
        body = encode(header, rows)
        self.store.put_if_absent(self._path(version), body)
        return version
