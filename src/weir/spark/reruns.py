"""A statement with an id: run again after its driver died, it is finished once, not done twice.

Keeps
  P-7  what a statement is about to write is recorded after every shard was claimed and checked, and
       before the first is written. A rerun with the same id writes those rows, by the same token in
       each shard, and computes nothing: rows of shards that were written are not changed again
The record lies beside the staged rows that it names, and is collected with them, after a day.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from weir.errors import CommitConflict, CorruptEntry, InvalidInput, MissingEntry
from weir.format import paths
from weir.routing.core import Core
from weir.spark.publish import StagedRows, publish
from weir.spark.shard_sink import ENTRY_BYTES, Token
from weir.spark.snapshots import RoutedSnapshot
from weir.spark.staging import Staged, read_staged, remove_staged
from weir.spark.statement import Statement, conflict
from weir.spark.writers import ShardWriters
from weir.store.api import ObjectExists, ObjectMissing

_BEGUN: Final = "begun"
_DONE: Final = "done"

State = Literal["new", "begun", "done"]


@dataclass(frozen=True)
class NamedStatement:
    """One statement, by the id that its caller gave it."""

    core: Core
    id: str

    def __post_init__(self) -> None:
        if not self.id.strip():
            raise InvalidInput(
                f"statementId is {self.id!r}, and every statement with an empty id would count as a"
                " rerun of the first: give each an id of its own, or leave it out"
            )

    @property
    def token(self) -> Token:
        """The same in every run."""
        return Token(f"{paths.JOB_APP}{self._job}", 0)

    @property
    def _job(self) -> str:
        return f"statement-{hashlib.sha256(self.id.encode()).hexdigest()[:32]}"

    def _path(self, state: str) -> str:
        return paths.staged_path(self._job, state)

    def state(self) -> State:
        """How far earlier runs came. Two requests."""
        if self.core.store.head(self._path(_DONE)) is not None:
            return "done"
        return "new" if self.core.store.head(self._path(_BEGUN)) is None else "begun"

    def publish(
        self,
        writers: ShardWriters,
        staged: StagedRows,
        read: RoutedSnapshot,
        *,
        inserts: bool,
        entry_bytes: int = ENTRY_BYTES,
    ) -> None:
        """Write the staged rows; or, if an earlier run began, what that one had staged."""
        state = self.state()
        if state == "new":
            publish(
                writers,
                staged,
                self.token,
                entry_bytes=entry_bytes,
                statement=Statement(read.snapshot, self.token, inserts),
                decided=lambda: self._begin(staged, read),
            )
            self._end(staged)
        elif state == "begun":
            self.finish(writers)

    def finish(self, writers: ShardWriters) -> None:
        """Write what an earlier run had begun, and did not write. `CommitConflict` if a row that is
        left was changed since: the statement then stays half done, which no rerun can repair."""
        read, files = self._load()
        if read.routing != self.core.record.routing_version:
            raise conflict(self.core, f"statement {self.id!r} is half done, and a reshard came")
        staged = self._by_shard(files)
        # Its keys were new when it was checked; it has put some of them since.
        statement = Statement(read.snapshot, self.token, inserts=False)
        publish(writers, staged, self.token, entry_bytes=ENTRY_BYTES, statement=statement)
        self._end(staged)

    def _begin(self, staged: StagedRows, read: RoutedSnapshot) -> None:
        files = [[file.path, file.rows] for files in staged.values() for file in files]
        text = json.dumps({"id": self.id, "read": read.to_json(), "files": files})
        try:
            self.core.store.put_if_absent(self._path(_BEGUN), text.encode())
        except ObjectExists:
            raise CommitConflict(
                f"{self.core.uri}: another run of statement {self.id!r} is at work. Nothing was"
                " written by this one; run it again when the other has ended"
            ) from None

    def _load(self) -> tuple[RoutedSnapshot, list[tuple[str, int]]]:
        path = self._path(_BEGUN)
        try:
            told = json.loads(self.core.store.get(path).data)
            read = RoutedSnapshot.from_json(told["read"])
            return read, [(str(file), int(rows)) for file, rows in told["files"]]
        except ObjectMissing:
            raise MissingEntry(
                f"{self.core.uri}: statement {self.id!r} was finished or collected meanwhile; run"
                " it again"
            ) from None
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptEntry(
                f"{self.core.uri}/{path} is not the record of a statement ({error!r}); use another"
                " id"
            ) from None

    def _by_shard(self, files: Sequence[tuple[str, int]]) -> StagedRows:
        """The files of each shard; the rows of a file are all of one."""
        found: dict[object, list[Staged]] = {}
        for path, rows in files:
            routing = self.core.record.routing_version
            first = next(read_staged(self.core, Staged(None, path, rows, routing)))
            ((value, _),) = self.core.router.split(first.slice(0, 1))
            found.setdefault(value, []).append(Staged(value, path, rows, routing))
        return found  # type: ignore[return-value]

    def _end(self, staged: StagedRows) -> None:
        try:
            self.core.store.put_if_absent(self._path(_DONE), self.id.encode())
        except ObjectExists:
            return  # another run finished it, too
        remove_staged(self.core, [file for files in staged.values() for file in files])
