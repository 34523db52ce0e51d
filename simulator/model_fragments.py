"""A model of Lance with fragments and conflicts, for histories in which others change the base.

The code of `weir.lake.base` that uses a Lance dataset (`fold_commit`, `fence`, `folded`, `history`,
the tasks of a compaction) runs here unchanged; only Lance itself is modelled. A version is one
object: the fragments as Lance describes them, their rows and deleted offsets, the metadata of the
columns, the marks. What matters about Lance, checked with pylance 14:
  a transaction is rebased once onto commits it is compatible with (here: changes of config), and
    refused after any other commit; an insert, update or delete of a plain program is retried
  programs rewrite files, delete and add rows, and restore versions without regard to weir; the
    metadata of columns stays with the schema
  fragments without a live row are left out of the new version
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import lance
import pyarrow as pa
from lance import LanceOperation
from lance.fragment import FragmentMetadata
from lance.schema import LanceSchema

from simulator.model_base import ModelBase, decode, encode
from simulator.model_lake import ModelLake
from weir.env import Env
from weir.errors import CommitConflict, MissingEntry
from weir.format.keys import pk_values
from weir.format.schema import TableSchema
from weir.lake.base.fold_commit import Folds
from weir.lake.base.folded import fold_number, folded_into, load_number
from weir.lake.base.versions import RESTORE, FilePlan
from weir.store.api import ObjectExists, ObjectMissing, Store

_PASSED: Final = frozenset({"config"})
"""Kinds of commits onto which a transaction planned before them is rebased."""
_ADDRESS_BITS: Final = 32


def describe(path: str, rows: int, number: int = 0) -> dict[str, Any]:
    """A fragment of one file, as Lance describes it."""
    file = {
        "path": path,
        "fields": [0],
        "column_indices": [0],
        "file_major_version": 2,
        "file_minor_version": 1,
        "file_size_bytes": None,
        "base_id": None,
    }
    made = {"id": number, "files": [file], "deletion_file": None, "physical_rows": rows}
    told: dict[str, Any] = FragmentMetadata.from_json(
        json.dumps({**made, "row_id_meta": None})
    ).to_json()
    return told


class Fragment:
    """One fragment of a version: its description, its rows, and which of them are deleted."""

    def __init__(
        self, lake: FragmentLake, version: int, told: Mapping[str, Any], rows: pa.Table
    ) -> None:
        self.told = dict(told["is"])
        self.deleted: list[int] = list(told["deleted"])
        self.rows = rows
        self._lake = lake
        self._version = version

    @property
    def fragment_id(self) -> int:
        """Its number in the dataset."""
        return int(self.told["id"])

    @property
    def path(self) -> str:
        """Its one file."""
        return str(self.told["files"][0]["path"])

    @property
    def metadata(self) -> FragmentMetadata:
        """As Lance describes it."""
        return FragmentMetadata.from_json(json.dumps(self.told))

    @property
    def live(self) -> list[int]:
        """Offsets of its live rows."""
        gone = set(self.deleted)
        return [offset for offset in range(self.rows.num_rows) if offset not in gone]

    def delete_rows(self, offsets: Sequence[int]) -> FragmentMetadata | None:
        """Delete those rows too, with a deletion vector in the store; None: no row is left."""
        gone = sorted({*self.deleted, *(int(offset) for offset in offsets)})
        if len(gone) == self.rows.num_rows:
            return None
        told = self._lake.with_deleted(self, self._version, gone)
        return FragmentMetadata.from_json(json.dumps(told))


class Dataset:
    """One version: the part of `lance.LanceDataset` that `weir.lake.base` uses."""

    def __init__(self, lake: FragmentLake, header: Mapping[str, Any], rows: pa.Table) -> None:
        self.uri = lake.uri
        self.version = int(header["version"])
        self.header = header
        self._lake = lake
        self._fragments: list[Fragment] = []
        start = 0
        for told in header["fragments"]:
            count = int(told["is"]["physical_rows"])
            self._fragments.append(Fragment(lake, self.version, told, rows.slice(start, count)))
            start += count

    @property
    def schema(self) -> pa.Schema:
        """The columns with their metadata in this version."""
        notes = self.header["notes"]
        fields = [
            field.with_metadata({**(field.metadata or {}), **notes.get(field.name, {})})
            for field in self._lake.schema.plain
        ]
        return pa.schema(fields)

    @property
    def lance_schema(self) -> LanceSchema:
        """The same schema in Lance's form."""
        return LanceSchema.from_pyarrow(self.schema)

    def get_fragments(self) -> list[Fragment]:
        """In order."""
        return self._fragments

    def config(self) -> dict[str, str]:
        """None."""
        return {}

    def describe_indices(self) -> list[Any]:
        """None."""
        return []

    def read_transaction(self, version: int) -> Any:
        """The transaction that made that version."""
        properties = dict(self._lake.open_base(version).properties)
        restores = properties.pop("kind") == "restore"
        operation = LanceOperation.Restore(version=0) if restores else None
        return SimpleNamespace(operation=operation, transaction_properties=properties)


class FragmentBase(ModelBase):
    """One version of the base."""

    def __init__(
        self, lake: FragmentLake, header: Mapping[str, Any], rows: pa.Table, schema: TableSchema
    ) -> None:
        self.of = Dataset(lake, header, rows)
        live = [f.rows.take(pa.array(f.live, pa.int64())) for f in self.of.get_fragments()]
        plain = schema.plain
        super().__init__(header, pa.concat_tables([plain.empty_table(), *live]), schema)
        self._lake = lake

    @property
    def dataset(self) -> Any:
        """The same as what stands for a Lance dataset."""
        return self.of

    @property
    def compacted(self) -> Mapping[UUID, int]:
        """The marks, and what the columns' metadata notes (L-7)."""
        found = dict(self.marked)
        for shard, number in folded_into(self.dataset).items():
            found[shard] = max(number, found.get(shard, 0))
        return found

    @property
    def fold_number(self) -> int:
        """As the columns' metadata notes it."""
        return fold_number(self.dataset)

    @property
    def load_number(self) -> int:
        """As the columns' metadata notes it."""
        return load_number(self.dataset)

    def deleted_rows(self) -> int:
        """See `LanceBase`."""
        return sum(len(f.rows) - len(f.live) for f in self.of.get_fragments())

    def fragments(self) -> list[tuple[int, int]]:
        """Number and live rows of each."""
        return [(f.fragment_id, len(f.live)) for f in self.of.get_fragments()]

    def fragment(self, fragment_id: int) -> Any:
        """One of them, or `MissingEntry`."""
        for fragment in self.of.get_fragments():
            if fragment.fragment_id == fragment_id:
                return fragment
        raise MissingEntry(f"{self!r} has no fragment {fragment_id}")

    def scan(
        self,
        columns: Sequence[str] | None = None,
        *,
        filter: str | None = None,
        fragments: Sequence[int] | None = None,
        limit: int | None = None,
        batch_size: int | None = None,
        with_row_address: bool = False,
    ) -> Iterator[pa.RecordBatch]:
        """Live rows; on request of some fragments only, and with their addresses."""
        if fragments is None:
            yield from super().scan(columns, filter=filter, limit=limit)
            return
        names = self.schema.plain.names if columns is None else list(columns)
        for number in fragments:
            found = self.fragment(number)
            offsets = found.live
            rows = found.rows.cast(self.schema.plain).take(pa.array(offsets, pa.int64()))
            table = rows.select(names)
            if with_row_address:
                addresses = [(number << _ADDRESS_BITS) | offset for offset in offsets]
                table = table.append_column("_rowaddr", pa.array(addresses, pa.uint64()))
            yield from table.to_batches()

    def write_fragments(
        self, data: Any, *, rows_per_file: int, bytes_per_file: int
    ) -> list[FragmentMetadata]:
        """One new file."""
        table = data if isinstance(data, pa.Table) else data.read_all()
        if not table.num_rows:
            return []
        return [FragmentMetadata.from_json(json.dumps(self._lake.write_file(table)))]


class _Handles:
    """See `weir.lake.datasets.Handles`; a model has nothing that could not be shared."""

    def __init__(self, lake: FragmentLake) -> None:
        self.env = lake.env
        self._lake = lake

    def latest(self) -> Any:
        """The latest version."""
        return self._lake.open_base().of

    def own(self, version: int | None = None) -> Any:
        """A version for one caller."""
        return self._lake.open_base(version).of

    def changing(self, version: int | None = None) -> Any:
        """A version for one caller."""
        return self.own(version)

    def commit(self, planned: object, transaction: lance.Transaction) -> int:
        """Commit a `Merge`."""
        return self._lake.commit_merge(transaction)


class FragmentLake(Folds, ModelLake):
    """The Lance side of one table, fragment by fragment. Folds, fences and the reading of commits
    are weir's own."""

    def __init__(self, store: Store, schema: TableSchema, env: Env) -> None:
        super().__init__(store, schema)
        self.env = env
        self.datasets = _Handles(self)

    @property
    def schema(self) -> TableSchema:
        """The table's schema, which never changes here."""
        return self._schema

    # -- versions --------------------------------------------------------------------------------

    def create_base(self) -> int:
        """An empty base."""
        header = {
            "version": 0,
            "fragments": [],
            "marked": {},
            "notes": {},
            "next": 0,
            "properties": {},
        }
        empty = FragmentBase(self, header, self._schema.plain.empty_table(), self._schema)
        return self._next(empty, "create")

    def open_base(self, version: int | None = None) -> FragmentBase:
        """The latest version, or that one."""
        for _ in range(20):
            number = max(self._versions(), default=0) if version is None else version
            try:
                return self.read_version(self.store.get(self._path(number)).data)
            except ObjectMissing:
                if version is not None:
                    break
        raise MissingEntry(f"{self.uri}: base version {version} is gone")

    def read_version(self, data: bytes) -> FragmentBase:
        """The version that is in those bytes."""
        header, rows = decode(data)
        return FragmentBase(self, header, rows, self._schema)

    def restore(self, version: int, checkpoint: str | None = None) -> int:
        """Commit that version's content as the latest, whatever was committed since."""
        old = self.open_base(version)
        named = {} if checkpoint is None else {RESTORE: checkpoint}

        def commit(base: FragmentBase) -> int:
            fragments = list(old.of.get_fragments())
            kept = {name: old.header[name] for name in ("marked", "notes")}
            return self._next(base, "restore", fragments, named, **kept)

        return self._again(commit)

    # -- what weir does --------------------------------------------------------------------------

    def commit_merge(self, transaction: lance.Transaction) -> int:
        """Commit a `Merge` on top of the latest version, or raise `CommitConflict`."""
        latest = self.open_base()
        for version in range(int(transaction.read_version) + 1, latest.version + 1):
            try:
                kind = self.open_base(version).properties["kind"]
            except MissingEntry:  # cleaned up since: no damage; Lance reports a conflict too
                kind = "what was cleaned up"
            if kind not in _PASSED:
                raise CommitConflict(f"{self.uri}: commit conflict with {kind} at {version}")
        merge: Any = transaction.operation
        known = {fragment.path: fragment for fragment in latest.of.get_fragments()}
        told = (json.loads(json.dumps(fragment.to_json())) for fragment in merge.fragments)
        fragments = [self._resolved(one, known, latest.version) for one in told]
        schema = merge.schema.to_pyarrow()
        notes = {
            field.name: {k.decode(): v.decode() for k, v in (field.metadata or {}).items()}
            for field in schema
        }
        properties = dict(transaction.transaction_properties or {})
        try:
            return self._next(latest, "merge", fragments, properties, notes=notes)
        except ObjectExists:
            raise CommitConflict(f"{self.uri}: version {latest.version + 1} is taken") from None

    def _resolved(
        self, told: dict[str, Any], known: Mapping[str, Fragment], version: int
    ) -> Fragment:
        """A described fragment with its rows."""
        path, vector = told["files"][0]["path"], told["deletion_file"]
        mine = known.get(path)
        rows = mine.rows if mine is not None else decode(self.store.get(f"data/{path}").data)[1]
        if vector is None:
            deleted = []
        elif vector["num_deleted_rows"] == told["physical_rows"]:
            deleted = list(range(told["physical_rows"]))
        elif mine is not None and vector == mine.told["deletion_file"]:
            deleted = mine.deleted
        else:
            deleted = json.loads(self.store.get(_vector(told)).data)
        if mine is None:
            told["id"] = -1  # given a number when it is committed
        return Fragment(self, version, {"is": told, "deleted": deleted}, rows)

    def mark_compacted(self, marks: Mapping[UUID, int]) -> int | None:
        """Raise the marks; never lower one."""

        def commit(base: FragmentBase) -> int:
            due = {str(s): g for s, g in marks.items() if g > base.marked.get(s, 0)}
            if not due:
                return 0
            return self._next(base, "mark", marked={**base.header["marked"], **due})

        return self._again(commit) or None

    # -- what any program does -------------------------------------------------------------------

    def compact_files(self) -> int:
        """Rewrite all rows into one new file; `CommitConflict` if another commit came first."""
        plan = self.plan_files(target_rows_per_fragment=0)
        return self.commit_files(plan, plan.tasks)

    def plan_files(self, *, target_rows_per_fragment: int) -> FilePlan:
        """One task for all of them, where there is something to gain."""
        base = self.open_base()
        old = base.of.get_fragments()
        has_work = len(old) + sum(bool(fragment.deleted) for fragment in old) >= 2
        return FilePlan(base, ("all",) if has_work else ())  # type: ignore[arg-type]

    def rewrite_files(self, task: str) -> str:
        """The model writes the file when it is committed."""
        return task

    def commit_files(self, plan: FilePlan, results: Sequence[str]) -> int:
        """On top of the version that was planned on."""
        base: FragmentBase = plan.dataset
        if not results:
            return base.version
        made = self._fresh(base.table, f"rewritten-{base.version}.model")
        try:
            return self._next(base, "rewrite", made)
        except ObjectExists:
            raise CommitConflict(f"{self.uri}: commit conflict with a rewrite of files") from None

    def plain_change(self, who: str, gone: Sequence[int], rows: pa.Table) -> int:
        """Delete the rows of the keys (or, without a key, of the sessions) `gone`, and add `rows`:
        an insert, upsert, update or delete of a program that knows nothing of weir."""

        def commit(base: FragmentBase) -> int:
            fragments = []
            for fragment in base.of.get_fragments():
                keys = pk_values(fragment.rows, self._schema.primary_key or ("w",)).to_pylist()
                hit = [offset for offset in fragment.live if keys[offset] in gone]
                if hit:
                    deleted = sorted({*fragment.deleted, *hit})
                    told = self.with_deleted(fragment, base.version, deleted)
                    fragment = Fragment(  # noqa: PLW2901
                        self, base.version, {"is": told, "deleted": deleted}, fragment.rows
                    )
                fragments.append(fragment)
            fragments += self._fresh(rows, f"plain-{who}.model")
            return self._next(base, "plain", fragments, {"who": who})

        return self._again(commit)

    # -- inside ----------------------------------------------------------------------------------

    def write_file(self, rows: pa.Table) -> dict[str, Any]:
        """A data file that nothing names yet, as a fragment."""
        body = encode({}, rows.replace_schema_metadata(None).cast(self._schema.plain))
        path = f"{self.env.new_id().hex}.model"
        self.store.put(f"data/{path}", body)
        return describe(path, rows.num_rows)

    def with_deleted(self, fragment: Fragment, version: int, gone: list[int]) -> dict[str, Any]:
        """Write that deletion vector; returns the fragment's description with it."""
        body = json.dumps(gone).encode()
        vector = {
            "read_version": version,
            "id": zlib.crc32(body),
            "file_type": "bitmap",
            "num_deleted_rows": len(gone),
            "base_id": None,
        }
        told = {**fragment.told, "deletion_file": vector}
        if len(gone) < fragment.rows.num_rows:
            self.store.put(_vector(told), body)
        return told

    def _fresh(self, rows: pa.Table, path: str) -> list[Fragment]:
        """A new fragment with those rows, if any."""
        if not rows.num_rows:
            return []
        told = {"is": describe(path, rows.num_rows, -1), "deleted": []}
        return [Fragment(self, 0, told, rows.cast(self._schema.plain))]

    def _again(self, commit: Callable[[FragmentBase], int]) -> int:
        for _ in range(20):
            try:
                return commit(self.open_base())
            except ObjectExists:
                continue
        raise CommitConflict(f"{self.uri}: others keep committing")

    def _next(
        self,
        base: FragmentBase,
        kind: str,
        fragments: Sequence[Fragment] | None = None,
        properties: Mapping[str, str] | None = None,
        **change: Any,
    ) -> int:
        """Write the version after `base` with those changes, or raise `ObjectExists`."""
        kept = [f for f in (base.of.get_fragments() if fragments is None else fragments) if f.live]
        number = int(base.header["next"])
        for fragment in kept:
            if fragment.told["id"] < 0:
                fragment.told["id"] = number
                number += 1
        header = {
            **base.header,
            **change,
            "version": base.version + 1,
            "properties": {**(properties or {}), "kind": kind},
            "fragments": [{"is": f.told, "deleted": f.deleted} for f in kept],
            "next": number,
        }
        plain = self._schema.plain
        rows = pa.concat_tables([plain.empty_table(), *(f.rows.cast(plain) for f in kept)])
        self.store.put_if_absent(self._path(base.version + 1), encode(header, rows))
        return base.version + 1


def _vector(told: Mapping[str, Any]) -> str:
    vector = told["deletion_file"]
    return f"_deletions/{told['id']}-{vector['read_version']}-{vector['id']}.bin"
