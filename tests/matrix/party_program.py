"""The other party of the version matrix: pylance or LanceDB, in any version, on its own.

Run by path, with nothing of weir importable. Each line in is a JSON request, `{"do": verb, ...}`;
each line out is a JSON answer: `{"ok": ...}`, or `{"error": class and message}` for a refusal.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.utf8())])


def table_of(rows, schema=SCHEMA):
    return pa.table({"id": [r[0] for r in rows], "v": [r[1] for r in rows]}, schema=schema)


class Pylance:
    """One dataset, with at most one open shard writer."""

    def __init__(self):
        import lance

        self.lance = lance
        self.version = lance.__version__
        self.writer = None

    def make(self, uri):
        mark = {"lance-schema:unenforced-primary-key": "true"}
        schema = pa.schema([SCHEMA.field("id").with_metadata(mark), SCHEMA.field("v")])
        made = self.lance.write_dataset(table_of([(1, "made")], schema), uri)
        made.initialize_mem_wal(unsharded=True)

    def put(self, uri, shard, rows):
        dataset = self.lance.dataset(uri)
        if self.writer is None:
            self.writer = dataset.mem_wal_writer(shard)
        self.writer.put(table_of(rows, dataset.schema))

    def delete(self, uri, shard, ids):
        if self.writer is None:
            self.writer = self.lance.dataset(uri).mem_wal_writer(shard)
        self.writer.delete(pa.table({"id": pa.array(ids, pa.int64())}))

    def close(self):
        self.writer.close()
        self.writer = None

    def forget(self):
        self.writer = None

    def scan(self, uri, snapshots):
        from lance.mem_wal import LsmScanner, ShardSnapshot

        built = []
        for shard, generation, sstables in snapshots:
            one = ShardSnapshot(shard).with_current_generation(generation)
            for number, path in sstables:
                one = one.with_sstable(number, path)
            built.append(one)
        found = LsmScanner.from_snapshots(self.lance.dataset(uri), built).to_table()
        return sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))

    def base(self, uri):
        found = self.lance.dataset(uri).to_table()
        return sorted(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))

    def upkeep(self, uri):
        dataset = self.lance.dataset(uri)
        dataset.optimize.compact_files()
        self.lance.dataset(uri).cleanup_old_versions(older_than=timedelta(0))


class LanceDb:
    """One table handle, which owns its writer."""

    def __init__(self):
        import lancedb

        self.lancedb = lancedb
        self.version = lancedb.__version__
        self.handle = None

    def _open(self, uri):
        place = Path(uri)
        db = self.lancedb.connect(str(place.parent), read_consistency_interval=timedelta(0))
        return db.open_table(place.stem)

    def make(self, uri):
        place = Path(uri)
        handle = self.lancedb.connect(str(place.parent)).create_table(
            place.stem, table_of([(1, "made")])
        )
        handle.set_unenforced_primary_key("id")
        handle.set_lsm_write_spec(self.lancedb.LsmWriteSpec.unsharded())

    def put(self, uri, shard, rows):
        if self.handle is None:
            self.handle = self._open(uri)
        merge = self.handle.merge_insert("id")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(table_of(rows))

    def close(self):
        self.handle.close_lsm_writers()
        self.handle = None

    def forget(self):
        self.handle = None

    def scan(self, uri, snapshots):
        return sorted((r["id"], r["v"]) for r in self._open(uri).search().limit(1000).to_list())

    def base(self, uri):
        return self.scan(uri, [])  # without pylance, LanceDB cannot read the base alone

    def upkeep(self, uri):
        self._open(uri).optimize(cleanup_older_than=timedelta(0))


def main():
    party = Pylance() if sys.argv[1] == "pylance" else LanceDb()
    print(json.dumps({"ok": party.version}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(party, request.pop("do"))(**request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
