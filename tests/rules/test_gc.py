"""G-1 to G-12: collection deletes nothing still needed and opens no hole for a late writer."""

import json
from dataclasses import replace
from itertools import combinations
from uuid import UUID

import pytest

from simulator.steps import watched
from tests.support.shards import Bench
from tests.support.sim_table import core_on
from weir.env import SYSTEM
from weir.errors import CommitConflict, FencedError, InvalidInput, SnapshotExpired, StoreError
from weir.format import paths
from weir.format.manifest import SsTable, encode_hint, encode_manifest
from weir.log.floors import Floors
from weir.log.manifests import Manifests
from weir.log.rules import Evidence
from weir.log.site import ShardSite
from weir.log.tailer import WalTailer
from weir.records import codec
from weir.records.checkpoints import Checkpoint
from weir.records.cut import ShardCut
from weir.shard.tokens import Tokens
from weir.store.retry import RetryingStore, RetryPolicy
from weir.types import Generation, Position, Version
from weir.upkeep.gc.collect import collect

CHECKPOINT = UUID("11111111-1111-4111-8111-111111111111")


class Place(Bench):
    """A shard with a collector, flushes without Lance, and checkpoints as records."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.raw._env is SYSTEM:  # first Place on this store: its clock stamps the objects
            self.raw._env = self.env
        self.core = core_on(self.site, self.table_schema)

    def gc(self, min_age=0, fence_retention="7d", **settings):
        return collect(self.core, min_age, fence_retention, **settings)

    def fold(self, through: int) -> None:
        """Say in the base that it holds the rows up to that generation."""
        self.core.lake.mark_compacted({self.shard: through})

    def flush(self, position: int, *, name: str = "", manifests: Manifests | None = None) -> None:
        """Publish one SSTable that covers everything up to `position`."""
        manifests = manifests or self.manifests()

        def change(current):
            generation = current.current_generation
            folder = name or f"{generation:08x}_gen_{generation}"
            self.folder(folder)
            following = replace(
                current,
                replay_after=Position(position),
                last_seen=Position(max(position, current.last_seen)),
                sstables=(*current.sstables, SsTable(generation, folder)),
                current_generation=Generation(generation + 1),
            )
            return following, Evidence(covered=Position(position))

        manifests.update(change, epoch=manifests.require().writer_epoch)

    def folder(self, name: str) -> None:
        for part in ("data/a.lance", "_versions/1.manifest", "weir_claim"):
            self.raw.put(f"{paths.sstable_dir(self.shard, name)}/{part}", b"x")

    def folders(self) -> list[str]:
        names, _ = self.raw.list_folder(paths.shard_dir(self.shard))
        return sorted(n.rpartition("/")[2] for n in names if "_gen_" in n)

    def positions(self) -> list[int]:
        return [position for position, _, _ in self.log()]

    def versions(self) -> list[int]:
        found = (
            paths.parse_manifest_name(m.path.rpartition("/")[2])
            for m in self.raw.list(paths.manifest_dir(self.shard))
        )
        return sorted(v for v in found if v)

    def record(self, seq: int = 1, checkpoint: UUID = CHECKPOINT, **record) -> None:
        path = paths.chain_path(paths.checkpoint_chain(checkpoint), seq)
        self.raw.put_if_absent(path, json.dumps(record).encode())

    def pin(self, through: int, *, checkpoint: UUID = CHECKPOINT, **more) -> None:
        """A checkpoint of the latest manifest, as a record."""
        m = self.manifests().require()
        cuts = (ShardCut.of(m, Position(through)),)
        made = Checkpoint(checkpoint, "all", 0.0, 1, 1, cuts, **more)
        path = paths.chain_path(paths.checkpoint_chain(checkpoint), 1)
        self.raw.put_if_absent(path, codec.dumps(made))
        self.core.lake.protect_version(made.base_tag, made.base_version)


@pytest.fixture
def place() -> Place:
    return Place()


def taken_over(place: Place, **settings) -> tuple:
    """The scenario of G-7: A writes 2 and sleeps; B fences at 3, writes 4 to 8 and flushes."""
    a = place.open(**settings)
    a.append(place.rows(1))
    b = place.open()
    for i in range(4, 9):
        b.append(place.rows(i))
    place.flush(8)
    return a, b


# -- G-1 to G-5 -----------------------------------------------------------------------------------


def test_g1_only_the_unreachable_goes(place: Place) -> None:
    taken_over(place)
    report = place.gc()
    assert report.ok, report.errors
    assert place.positions() == [1, 3, 8], "two first entries and the entry at R"
    assert place.versions() == [3]
    assert place.folders() == ["00000001_gen_1"]
    assert report.to_dict() == json.loads(json.dumps(report.to_dict()))


def test_g1_a_checkpoint_keeps_its_version_its_sstables_and_its_stretch_of_the_log(place) -> None:
    a = place.open()
    for i in range(2, 7):
        a.append(place.rows(i))
    place.flush(3)
    place.pin(through=5)
    place.flush(6)
    place.fold(2)
    report = place.gc(fence_retention="7d", keep_first_entries=False)
    assert report.pruned == 2
    assert place.positions() == [4, 5, 6]
    assert place.versions() == [2, 4]
    assert place.folders() == ["00000001_gen_1"]
    place.record(2, deleted=True)
    place.gc(keep_first_entries=False)
    assert place.positions() == [6]
    assert place.versions() == [4]
    assert place.folders() == []


def test_g1_what_young_versions_name_stays_for_readers(place: Place) -> None:
    a = place.open()
    for i in range(2, 7):
        a.append(place.rows(i))
    place.flush(3)
    place.fold(1)
    place.clock.now += 3600
    report = place.gc("15m", keep_first_entries=False)
    assert report.pruned == 1
    assert place.folders() == ["00000001_gen_1"], "named until a moment ago"
    assert place.versions() == [2, 3]
    place.clock.now += 901
    place.gc("15m", keep_first_entries=False)
    assert place.folders() == []
    assert place.versions() == [3]


def test_g2_a_refresh_that_races_expiry_wins_or_sees_it_lost(place: Place) -> None:
    place.open().append(place.rows(1))
    place.flush(2)
    now = place.store.now()
    place.pin(through=2, expires=now - 1)
    refresh = paths.chain_path(paths.checkpoint_chain(CHECKPOINT), 2)
    gate = place.faults.on("put_if_absent", refresh).pause()
    done = []
    thread = place.env.threads.start(lambda: done.append(place.gc()), name="gc")
    gate.wait_reached()
    place.raw.put_if_absent(refresh, json.dumps({"expires": now + 60}).encode())
    gate.release()
    thread.join()
    assert done[0].kind("checkpoints").kept["refreshed meanwhile"] == 1
    assert 2 in place.versions(), "refreshed in time: it still holds its version"
    place.clock.now += 100
    assert place.gc("15m").ended == 1
    assert json.loads(place.raw.get(refresh.replace("2.json", "3.json")).data)["deleted"]


def test_g2_expiry_is_recorded_before_anything_is_taken(place: Place) -> None:
    place.open().append(place.rows(1))
    place.flush(2)
    place.pin(through=2, expires=place.store.now() - 1)
    place.flush(2)
    place.gc()
    log = [e for e in place.faults.log if e.op in ("put_if_absent", "delete")]
    ended = next(i for i, e in enumerate(log) if paths.CHECKPOINTS in e.path)
    assert all(e.op != "delete" or "manifest" not in e.path for e in log[:ended])
    assert place.versions() == [3]


def test_g3_the_clock_of_this_machine_decides_nothing(place: Place) -> None:
    """Only differences of store times count, so a collector with a wrong clock acts the same."""
    taken_over(place)
    ahead = Place(raw=place.raw)
    ahead.clock.now += 10 * 365 * 86400
    ahead.raw = place.raw
    store = RetryingStore(place.raw, ahead.env, RetryPolicy())
    site = ShardSite(store, store, place.shard, ahead.env)
    report = collect(core_on(site, ahead.table_schema), "15m", "7d")
    assert report.kind("wal").deleted == 0
    assert place.positions() == list(range(1, 9))


def test_g4_an_orphan_goes_by_its_number_and_a_stalled_upload_never(place: Place) -> None:
    a = place.open()
    a.append(place.rows(1))
    place.flush(2)
    place.folder("aaaaaaaa_gen_1")
    place.folder("bbbbbbbb_gen_2")
    place.folder("cccccccc_gen_3")
    place.clock.now += 30 * 86400
    place.gc()
    assert place.folders() == ["00000001_gen_1", "bbbbbbbb_gen_2", "cccccccc_gen_3"]
    a.append(place.rows(2))
    place.flush(3, name="bbbbbbbb_gen_2")
    place.gc()
    assert "bbbbbbbb_gen_2" in place.folders()


def test_g4_folders_are_listed_before_the_manifest_is_read(place: Place) -> None:
    """An SSTable published between the two is named in the manifest, which is read second."""
    place.open().append(place.rows(1))

    def publish(step: str) -> None:
        if step == "listed":
            place.flush(2)
            place.flush(2)

    place.folder("00000001_gen_1")
    collect(watched(place.core, "gc", publish), 0, "7d")
    assert place.folders() == ["00000001_gen_1", "00000002_gen_2"]


def test_g5_a_fold_that_ends_while_we_collect_loses_nothing(place: Place) -> None:
    for step in ("listed", "read", "floors", "pinned"):
        p = Place()
        p.open().append(p.rows(1))
        p.flush(2)

        def fold(at: str, p=p, step=step) -> None:
            if at == step:
                p.fold(1)

        collect(watched(p.core, "gc", fold), 0, "7d")
        latest = p.manifests().require()
        assert {t.path for t in latest.sstables} <= set(p.folders())


def test_a_restore_during_collection_keeps_what_it_names_again(place: Place) -> None:
    """When pins are read, the checkpoint of the SSTable is gone, but the manifest names it."""
    for step in ("listed", "read", "floors"):
        p = Place()
        p.open().append(p.rows(1))
        p.flush(2)
        p.pin(through=2)
        p.fold(1)
        p.gc()
        assert p.manifests().require().sstables == ()

        def restore(at: str, p=p, step=step) -> None:
            if at == step:
                manifests = p.manifests()
                p.core.lake.restore(1)
                old = manifests.load(Version(2))
                claimed = manifests.claim(manifests.require())
                manifests.update(
                    lambda m: (replace(m, sstables=old.sstables), Evidence(restoring=True)),
                    epoch=claimed.writer_epoch,
                )
                p.record(2, deleted=True)

        collect(watched(p.core, "gc", restore), 0, "7d")
        assert p.folders() == ["00000001_gen_1"], step


# -- G-6, G-7, G-8 --------------------------------------------------------------------------------


def test_g6_a_version_written_late_into_a_collected_place_is_no_success(place: Place) -> None:
    taken_over(place)
    late = place.manifests()
    base = late.require()
    for _ in range(4):
        place.flush(8)
    place.gc()
    assert base.version + 1 not in place.versions()
    with pytest.raises(CommitConflict, match="already collected"):
        late.commit(replace(base, version=Version(base.version + 1)), base, Evidence())
    assert place.manifests().require().version == base.version + 4, "the ghost hides nothing"


def test_g6_the_floor_is_durable_before_the_first_delete(place: Place) -> None:
    taken_over(place)
    place.gc()
    order = [
        (e.op, "floor" in e.path) for e in place.faults.log if e.op in ("put_if_absent", "delete")
    ]
    deletes = [i for i, (op, floor) in enumerate(order) if op == "delete" and not floor]
    floors = [i for i, (op, floor) in enumerate(order) if op == "put_if_absent" and floor]
    assert len(floors) >= 2
    assert max(floors) < min(deletes)


@pytest.mark.parametrize("kind", ["wal", "manifest"])
def test_g6_no_floor_no_delete(place: Place, kind: str) -> None:
    taken_over(place)
    before = place.positions(), place.versions()
    place.faults.on("put_if_absent", f"*/floor/{kind}/*").refuse(times=None)
    report = place.gc()
    assert not report.ok
    assert (place.positions(), place.versions()) == before


def test_g7_first_entries_alone_stop_the_sleeper(place: Place) -> None:
    a, _ = taken_over(place, fence_ttl=float("inf"))
    place.gc()
    with pytest.raises(FencedError):
        a.append(place.rows(99))
    assert 99 not in [i for _, _, ids in place.log() for i in ids or ()]


def test_g7_stale_ownership_alone_stops_the_sleeper(place: Place) -> None:
    a, _ = taken_over(place, fence_ttl=60)
    place.clock.now += 61
    place.gc(keep_first_entries=False)
    with pytest.raises(FencedError):
        a.append(place.rows(99))


def test_g7_without_either_lock_the_row_is_acknowledged_and_lost(place: Place) -> None:
    """Validates the tests above: without the two locks the row is lost."""
    a, _ = taken_over(place, fence_ttl=float("inf"))
    place.gc(keep_first_entries=False)
    position = a.append(place.rows(99))
    assert position <= place.manifests().require().replay_after, "no replay will ever read it"


def test_g7_a_put_delayed_in_the_network_past_collection(place: Place) -> None:
    a, _ = taken_over_late(place, keep=True)
    assert isinstance(a, FencedError)
    assert [p for p, e, _ in place.log() if e == 1] == [1], "the late put met the fence"


def test_g7_a_put_delayed_past_the_retention_is_unknown_or_fenced_never_success(place) -> None:
    a, _ = taken_over_late(place, keep=False)
    assert isinstance(a, FencedError), "the put landed, but ownership had gone stale"


def taken_over_late(place: Place, *, keep: bool) -> tuple:
    """A sends its put at 3 before B opens; the put arrives after the collection."""
    a = place.open()
    a.append(place.rows(1))
    gate = place.faults.on("put_if_absent", paths.wal_path(place.shard, Position(3))).pause()
    outcome: list[object] = []

    def put() -> None:
        try:
            outcome.append(a.append(place.rows(99)))
        except Exception as error:
            outcome.append(error)

    thread = place.env.threads.start(put, name="a")
    gate.wait_reached()
    other = Place(raw=place.raw, clock=place.clock)
    b = other.open()
    for i in range(4, 9):
        b.append(other.rows(i))
    other.flush(8)
    other.clock.now += 61 if keep else 8 * 86400
    other.gc()
    gate.release()
    thread.join()
    return outcome[0], b


def test_g7a_first_entries_go_after_the_retention(place: Place) -> None:
    taken_over(place)
    place.clock.now += 7 * 86400 + 1
    place.gc()
    assert place.positions() == [8]


def test_g7a_entries_beside_a_silent_claim_stay(place: Place) -> None:
    """A sleeping native claimant may aim its sentinel at a position an older writer then takes."""
    a = place.open()
    a.append(place.rows(1))
    manifests = place.manifests()
    manifests.claim(manifests.require())  # epoch 2 claims and sleeps; it will write at 3
    a.append(place.rows(2))  # 3, by epoch 1
    c = place.open()  # epoch 3, fence at 4
    c.append(place.rows(3))
    place.flush(5)
    place.gc()
    assert 3 in place.positions(), "where epoch 2 will put its sentinel"
    place.clock.now += 7 * 86400 + 1
    place.gc()
    assert place.positions() == [5]


def test_g7b_the_retention_must_outlast_two_proofs(place: Place) -> None:
    with pytest.raises(InvalidInput, match="fence_retention"):
        place.gc(0, 119)
    with pytest.raises(InvalidInput, match="min_age"):
        place.gc("8d", "7d")
    place.gc(0, 120)


def test_g7c_a_collected_prefix_is_told_from_a_hole(place: Place) -> None:
    taken_over(place)
    place.gc()
    with pytest.raises(SnapshotExpired):
        WalTailer(place).read(5)
    assert [e.position for e in WalTailer(place, fences=True)] == [8]


def test_g7d_a_late_hint_leads_nobody_back(place: Place) -> None:
    taken_over(place)
    for _ in range(4):
        place.flush(8)
    latest = place.manifests().require()
    old = place.manifests().load(Version(2))
    place.gc()
    hint = paths.manifest_hint_path(place.shard)
    place.raw.put(hint, encode_hint(Version(2)))
    assert place.manifests().require() == latest
    place.raw.put(paths.manifest_path(place.shard, Version(2)), encode_manifest(old))
    assert place.manifests().require() == latest, "nor does a version that came back"
    place.gc()
    assert place.versions() == [latest.version]
    assert place.raw.get(hint).data == encode_hint(latest.version), "native readers need the hint"


def test_g8_floors_only_rise_whoever_raises_them(place: Place) -> None:
    taken_over(place)
    floors = Floors(place.site)
    for order in combinations((3, 9, 5), 3):
        for number in order:
            floors.raise_to("wal", number)
    place.gc()
    assert floors.load().wal == 9
    assert len(list(place.raw.list(paths.floor_dir(place.shard, "wal")))) >= 1


# -- G-9 to G-12, S-5, P-2 ------------------------------------------------------------------------


def test_g9_the_next_writer_finds_the_tip_of_a_collected_log(place: Place) -> None:
    taken_over(place)
    place.clock.now += 30 * 86400
    place.gc()
    assert place.positions() == [8]
    assert place.open().claim.fence == 9


def test_g10_one_failing_task_does_not_stop_the_others(place: Place) -> None:
    taken_over(place)
    place.faults.on("delete", "*/manifest/*").refuse(times=None)
    report = place.gc()
    assert len(report.errors) == 1
    assert "manifests" in report.errors[0]
    assert place.positions() == [1, 3, 8]
    place.faults.heal()
    assert place.gc().ok
    assert place.versions() == [3]


def test_g10_a_dry_run_says_it_all_and_writes_nothing(place: Place) -> None:
    taken_over(place)
    place.folder("aaaaaaaa_gen_1")
    place.pin(through=8, expires=place.store.now() - 1)
    place.fold(1)
    before = {meta.path for meta in place.raw.list("")}
    dry = place.gc(dry_run=True)
    assert {meta.path for meta in place.raw.list("")} == before
    wet = place.gc()
    for kind in ("wal", "sstables"):
        assert dry.kind(kind).deleted == wet.kind(kind).deleted, kind
    assert dry.pruned == wet.pruned == 1
    assert dry.ended == wet.ended == 1


def test_g10_a_veto_keeps_objects_but_not_the_floor(place: Place) -> None:
    taken_over(place)
    report = place.gc(veto=lambda kind, path: kind == "wal")
    assert report.kind("wal").kept["vetoed"] == 5
    assert place.positions() == list(range(1, 9))
    assert Floors(place.site).load().wal == 7


def test_g11_an_unreadable_version_keeps_everything_it_could_name(place: Place) -> None:
    taken_over(place)
    place.flush(8)
    place.raw.put(paths.manifest_path(place.shard, Version(3)), b"\xff\xff")
    before = place.positions(), place.versions(), place.folders()
    report = place.gc("15m")
    assert any("manifest" in error for error in report.errors)
    assert (place.positions(), place.versions(), place.folders()) == before


def test_g11_an_unreadable_checkpoint_keeps_everything(place: Place) -> None:
    taken_over(place)
    place.record(1, nonsense=True)
    before = place.positions(), place.versions(), place.folders()
    report = place.gc()
    assert any("checkpoint" in error for error in report.errors)
    assert (place.positions(), place.versions(), place.folders()) == before


def test_g12_two_collectors_at_once_and_a_missing_object_are_fine(place: Place) -> None:
    taken_over(place)
    other = Place(raw=place.raw, clock=place.clock)
    steps: list[str] = []

    def meanwhile(step: str) -> None:
        if step == "pinned":
            steps.append(step)
            assert other.gc().ok

    assert collect(watched(place.core, "gc", meanwhile), 0, "7d").ok
    assert steps
    assert place.positions() == [1, 3, 8]


def test_g12_a_collection_that_died_is_finished_by_the_next(place: Place) -> None:
    taken_over(place)
    clean = Place()
    taken_over(clean)
    before = clean.faults.mutations
    clean.gc()
    writes = clean.faults.mutations - before
    assert writes >= 4
    for crash in range(1, writes + 1):
        p = Place()
        taken_over(p)
        p.faults.crash_at(crash)
        with pytest.raises(BaseException, match=r"delete|put"):
            p.gc()
        healed = Place(raw=p.raw, clock=p.clock)
        assert healed.gc().ok
        assert healed.positions() == [1, 3, 8], crash
        assert healed.versions() == [3], crash


def test_p2_tokens_outlive_the_entries_that_carried_them(place: Place) -> None:
    """A native writer flushed weir's rows without recording tokens; collection records them."""
    a = place.open()
    a.append(place.rows(1), tokens=[("app", 7)])
    a.append(place.rows(2), tokens=[("app", 9), ("other", 1)])
    a.append(place.rows(3))
    Tokens(place.site).record("app", 3)
    place.flush(4)
    place.clock.now += 8 * 86400
    place.gc()
    assert place.positions() == [4]
    assert Tokens(place.site).load("app") == 9
    assert Tokens(place.site).load("other") == 1


def test_p3_a_consumer_of_the_change_feed_holds_what_it_has_not_read(place: Place) -> None:
    taken_over(place)
    chain = paths.consumer_chain("reports")
    now = place.store.now()
    record = {"positions": {str(place.shard): 4}, "expires": now + 10 * 86400}
    place.raw.put_if_absent(paths.chain_path(chain, 1), json.dumps(record).encode())
    place.clock.now += 8 * 86400
    place.gc()
    assert place.positions() == [4, 5, 6, 7, 8]
    place.clock.now += 8 * 86400
    place.gc()
    assert place.positions() == [8], "its lifetime ended"


def test_leftovers_of_dead_processes_go(place: Place) -> None:
    place.raw.put("_weir/clock/x", b"")
    place.raw.put("_weir/probe/y", b"")
    place.clock.now += 3600
    place.raw.put("_weir/clock/young", b"")
    place.gc()
    names = {m.path for m in place.raw.list("_weir") if "floor" not in m.path}
    assert names == {"_weir/clock/young"}


def test_tokens_of_jobs_that_are_over_go_and_those_of_applications_stay(place: Place) -> None:
    tokens = Tokens(place.site)
    job = f"{paths.JOB_APP}one"
    for app in ("app", "job-of-mine", job):
        tokens.record(app, 3)
    place.clock.now += 6 * 86400
    place.gc()
    assert tokens.load(job) == 3
    place.clock.now += 2 * 86400
    place.gc()
    assert tokens.load(job) is None
    assert tokens.load("app") == tokens.load("job-of-mine") == 3


def test_a_dead_checkpoint_leaves_no_record_after_the_retention(place: Place) -> None:
    place.open()
    place.pin(through=1)
    place.record(2, deleted=True)
    place.gc("15m")
    assert len(list(place.raw.list(paths.CHECKPOINTS))) == 2
    place.faults.on("delete", "*1.json").refuse(times=None)
    place.gc()
    assert len(list(place.raw.list(paths.CHECKPOINTS))) == 2, "the deletion goes last"
    place.faults.heal()
    place.faults.on("delete", "*2.json").refuse(times=None)
    place.gc()
    left = [m.path for m in place.raw.list(paths.CHECKPOINTS)]
    assert [path[-6:] for path in left] == ["2.json"], "cut in the middle it is still dead"
    place.faults.heal()
    place.gc()
    assert list(place.raw.list(paths.CHECKPOINTS)) == []


def test_kinds_can_be_chosen(place: Place) -> None:
    taken_over(place)
    place.gc(kinds=["manifests"])
    assert place.positions() == list(range(1, 9))
    assert place.versions() == [3]
    with pytest.raises(InvalidInput, match="kinds"):
        place.gc(kinds=["everything"])


def test_g10_a_failing_listing_of_the_shards_does_not_stop_the_other_kinds(place: Place) -> None:
    taken_over(place)
    place.fold(1)
    place.faults.on("list_folder", paths.SHARDS).refuse(times=None)
    report = place.gc()
    assert [error.startswith("shards: StoreError") for error in report.errors] == [True]
    assert report.kind("base").deleted == 1
    assert place.positions() == list(range(1, 9))


def test_a_failing_listing_is_an_error_of_that_shard_alone(place: Place) -> None:
    taken_over(place)
    place.faults.on("list", paths.shard_dir(place.shard)).refuse(times=None)
    report = place.gc()
    assert len(report.errors) == 1
    assert StoreError.__name__ in report.errors[0]
