"""Plants one deliberate bug after the other in a copy of the tree and demands that a test finds it.

`python tools/mutation.py` runs all, `--only NAME` some, `--list` names them; `--docs FILE` also
writes the table. A bug
that no test catches is a survivor, and the run fails. A patch that no longer fits the code fails
too: mend it here.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 900


@dataclass(frozen=True)
class Mutant:
    """One deliberate bug, and the command that must fail because of it."""

    name: str
    file: str
    old: str
    new: str
    catch: tuple[str, ...]
    rule: str
    more: tuple[tuple[str, str], ...] = ()
    """Further replacements in the same file."""


def soak(seeds: int = 3000, scenario: str | None = None) -> tuple[str, ...]:
    """The simulator, until the first broken promise."""
    chosen = ("--scenario", scenario) if scenario else ()
    return (
        "-m", "simulator.soak", "--seeds", str(seeds), "--jobs", "2", "--fail-fast", *chosen,
    )  # fmt: skip


def tests(*paths: str) -> tuple[str, ...]:
    """Tests, until the first failure."""
    return ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *paths)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "no fence in the log",
        "src/weir/log/fence.py",
        "            stored = site.wal.put_if_absent(paths.wal_path(site.shard, position), entry)",
        "            position, stored = Position(position - 1), None",
        soak(),
        "F-1",
    ),
    Mutant(
        "probe after the claim",
        "src/weir/log/fence.py",
        '        site.env.failpoint("claim.claimed")\n',
        "        position = _next_position(site, claimed, floors)\n",
        soak(8000, "fencing"),
        "F-1",
    ),
    Mutant(
        "no validation after the fence",
        "src/weir/log/fence.py",
        "    _validate(site, manifests, current or claimed, floors, epoch, position)\n",
        "",
        soak(),
        "F-4",
    ),
    Mutant(
        "a collision at open means fenced for nobody",
        "src/weir/log/fence.py",
        "            manifests.require_owner(manifests.require(), epoch, position)\n"
        "            position",
        "            position",
        soak(8000, "fencing"),
        "F-5",
    ),
    Mutant(
        "a collision of a running writer is passed over",
        "src/weir/log/appender.py",
        "                raise self._collided(position, entry) from None\n",
        "                self._next = Position(position + 1)\n"
        "                return self._send(self._next, entry)\n",
        soak(),
        "F-5",
    ),
    Mutant(
        "exists is taken for ours",
        "src/weir/log/appender.py",
        "        return found.meta if found.data == bytes(entry.data) else None\n",
        "        return found.meta\n",
        soak(),
        "F-11",
    ),
    Mutant(
        "a lost answer is taken for success",
        "src/weir/store/retry.py",
        "        lost = last if isinstance(last, LostAnswer) else None\n",
        "        lost = last if isinstance(last, LostAnswer) else None\n"
        "        if lost:\n            return\n",
        soak(),
        "F-9",
    ),
    Mutant(
        "a lost answer is taken for a conflict",
        "src/weir/store/retry.py",
        "                if found.data != bytes(data):\n",
        "                if True:\n",
        tests("tests/unit/store/test_retry.py", "tests/regress"),
        "F-9",
    ),
    Mutant(
        "an object that is gone is called somebody else's",
        "src/weir/store/retry.py",
        "                if found is None:\n",
        "                if found is None:\n                    raise\n                if False:\n",
        tests("tests/regress/test_object_gone_before_it_was_compared.py"),
        "F-9",
    ),
    Mutant(
        "a shard is made under a routing that is gone",
        "src/weir/routing/core.py",
        "            self._require_routing(record)\n        return shard\n",
        "        return shard\n",
        tests("tests/regress/test_shard_made_after_a_reshard.py"),
        "C-11",
    ),
    Mutant(
        "a reshard forgets a dead compactor's fold",
        "src/weir/upkeep/exclusive.py",
        "    if record.job is not None:\n",
        "    if False:\n",
        tests("tests/regress/test_fold_forgotten_by_a_reshard.py"),
        "L-4",
    ),
    Mutant(
        "a shard of a dropped table can be claimed again",
        "src/weir/upkeep/drop.py",
        "last_seen=last, status=Status.SEALED\n",
        "last_seen=last\n",
        tests("tests/unit/upkeep/test_drop.py"),
        "C-16",
    ),
    Mutant(
        "a table is dropped under its clone",
        "src/weir/upkeep/drop.py",
        "    if owners:\n",
        "    if False:\n",
        tests("tests/unit/upkeep/test_drop.py"),
        "C-15",
    ),
    Mutant(
        "a number is rounded on its way in",
        "src/weir/format/exact.py",
        "            wrong = _differs(column, result.cast(have, safe=False))\n",
        "            wrong = _differs(column, column)\n",
        tests("tests/unit/format/test_exact.py"),
        "M-9",
    ),
    Mutant(
        "values of Python go into Arrow as pyarrow likes",
        "src/weir/format/python_values.py",
        "    if kinds <= _taken_exactly(dtype):\n",
        "    if kinds:\n",
        tests("tests/unit/format/test_exact.py"),
        "M-9",
    ),
    Mutant(
        "a fast snapshot does not look at the floors",
        "src/weir/read/fast_snapshot.py",
        "            found.manifest >= one.manifest.version\n            or",
        "            False\n            or",
        tests("tests/rules/test_fast_snapshot.py"),
        "L-1",
    ),
    Mutant(
        "a fast snapshot does not look at the base",
        "src/weir/read/fast_snapshot.py",
        "    if answers[0] != ids or answers[1] != version:\n",
        "    if answers[0] != ids:\n",
        tests("tests/rules/test_fast_snapshot.py"),
        "L-5",
    ),
    Mutant(
        "a lost answer is taken for a refusal",
        "src/weir/log/appender.py",
        "            raise self._finish_unknown(position, entry, lost) from lost\n",
        "            entry.sent = False\n            raise StoreError(str(lost)) from lost\n",
        tests("tests/rules/test_fencing.py", "tests/rules/test_writer.py"),
        "F-11",
    ),
    Mutant(
        "no identity in a manifest",
        "src/weir/log/manifests.py",
        "commit_id=self.site.env.new_id().bytes",
        'commit_id=b"same"',
        soak(8000, "fencing"),
        "F-9",
    ),
    Mutant(
        "the queue is dropped when an append fails",
        "src/weir/shard/persist.py",
        "            failed(attempt, error)\n            env.clock",
        "            failed(attempt, error)\n            return attempt + 1\n            env.clock",
        soak(),
        "M-3",
    ),
    Mutant(
        "acknowledged before durable",
        "src/weir/shard/puts.py",
        "from None\n        ack.wait(timeout)\n",
        "from None\n",
        tests("tests/rules/test_writer.py"),
        "M-7",
    ),
    Mutant(
        "R moves past what is flushed",
        "src/weir/shard/memtable.py",
        "        return self.durable if first is None else Position(first - 1)\n",
        "        return self.durable if first is None else first\n",
        soak(),
        "W-1",
    ),
    Mutant(
        "replay covers what it has not read",
        "src/weir/shard/flush.py",
        "            memtables.durable = Position(entry.position - 1)\n",
        "",
        soak(),
        "F-8",
    ),
    Mutant(
        "a flush publishes rows the log does not have",
        "src/weir/shard/state.py",
        "        return self.memtables.frozen[0].waiting == 0\n",
        "        return True\n",
        soak(),
        "W-4",
    ),
    Mutant(
        "a flush without a check of the epoch",
        "src/weir/log/manifests.py",
        "            self.require_owner(current, epoch)\n            changed = change(current)\n",
        "            epoch = current.writer_epoch\n            changed = change(current)\n",
        soak(),
        "F-1",
    ),
    Mutant(
        "an SSTable compacted away since is published again",
        "src/weir/log/manifests.py",
        "        if not tried:\n            return False\n",
        "        return False\n",
        tests("tests/unit/log/test_manifests.py", "-k", "w5"),
        "W-5",
    ),
    Mutant(
        "an SSTable published twice after an error",
        "src/weir/shard/flush.py",
        "self._appender.manifests.published(",
        "(lambda *_: False)(",
        tests("tests/regress/test_flush_published_before_its_error.py"),
        "W-5",
    ),
    Mutant(
        "no proof of ownership after a put",
        "src/weir/log/ownership.py",
        "            self.prove()\n",
        "            pass\n",
        soak(20000, "collection"),
        "G-7b",
    ),
    Mutant(
        "entries of two generations share one entry of the log",
        "src/weir/shard/state.py",
        "                ack.generation != group[0].generation\n                or ",
        "                ",
        soak(),
        "M-4",
    ),
    Mutant(
        "replay forgets generations",
        "src/weir/shard/replay.py",
        "                running = tag\n",
        "                pass\n",
        soak(),
        "F-8",
    ),
    Mutant(
        "replay stops at a hole",
        "src/weir/log/tailer.py",
        "                if not self._came_meanwhile(self.position):\n"
        "                    raise self.log.hole(self.position)\n"
        "                continue\n",
        "                return\n",
        tests("tests/regress/test_entry_between_two_looks_is_no_hole.py"),
        "F-6",
    ),
    Mutant(
        "one waiter woken, the others forgotten",
        "src/weir/shard/group.py",
        "            gate.release()  # a turnstile",
        "            pass  # a turnstile",
        soak(),
        "M-7",
    ),
    Mutant(
        "close takes rows after its last look",
        "src/weir/shard/writer.py",
        "                state.closing = True\n",
        "",
        tests("tests/regress/test_closing_is_exact.py"),
        "M-8",
    ),
    Mutant(
        "delete before the floor",
        "src/weir/upkeep/gc/visit.py",
        '            floors.raise_to("wal", highest)\n',
        "",
        soak(3000, "collection"),
        "G-7c",
    ),
    Mutant(
        "rows behind a large level join the newest",
        "src/weir/read/reader.py",
        "            break  # L-2",
        "            continue  # L-2",
        tests("tests/rules/test_many_shards.py", "-k", "too_large"),
        "L-2",
    ),
    Mutant(
        "the common level of an earlier cut serves a read",
        "src/weir/merge/common.py",
        "    return part is not None and part[0] == want\n",
        "    return part is not None\n",
        tests("tests/rules/test_many_shards.py", "-k", "l5 or l2"),
        "L-5",
    ),
    Mutant(
        "rows of shards that a scan does not read are in its level",
        "src/weir/merge/common.py",
        "            others = any(shard not in wanted for shard in held)\n",
        "            others = False\n",
        tests("tests/rules/test_many_shards.py", "-k", "l2"),
        "L-2",
    ),
    Mutant(
        "the pins are read before the floors rise",
        "src/weir/upkeep/gc/shard.py",
        "    folded = _read_folded(visits, job)\n",
        "    folded, early = _read_folded(visits, job), job.pins()\n",
        tests("tests/rules/test_gc_shards.py", "-k", "k1b"),
        "K-1b",
        more=(("        pins = job.pins()\n", "        pins = early\n"),),
    ),
    Mutant(
        "the pins are read when the first shard's floors are up",
        "src/weir/upkeep/gc/shard.py",
        "    visits = _each(job, visits, lambda visit: visit.prune_and_raise(job, folded))\n",
        "    rest = visits[1:]\n"
        "    visits = _each(job, visits[:1], lambda visit: visit.prune_and_raise(job, folded))\n"
        "    early = job.pins()\n"
        "    visits += _each(job, rest, lambda visit: visit.prune_and_raise(job, folded))\n",
        tests("tests/rules/test_gc_shards.py", "-k", "k1b"),
        "K-1b",
        more=(("        pins = job.pins()\n", "        pins = early\n"),),
    ),
    Mutant(
        "the entry at R is collected",
        "src/weir/upkeep/gc/plan.py",
        "    keep(positions >= state.latest.replay_after,",
        "    keep(positions > state.latest.replay_after,",
        soak(3000, "collection"),
        "G-9",
        # The latest manifest is one of those whose age keeps it: that line alone would do as well.
        more=(
            (
                "    keep(positions >= replay_point(state.retained),",
                "    keep(positions > replay_point(state.retained),",
            ),
        ),
    ),
    Mutant(
        "manifests deleted above the floor",
        "src/weir/upkeep/gc/visit.py",
        '            floors.raise_to("manifest", living.floor)\n',
        "",
        soak(3000, "collection"),
        "G-6",
    ),
    Mutant(
        "orphans by absence alone",
        "src/weir/upkeep/gc/plan.py",
        "        elif generation >= state.latest.current_generation:\n"
        '            reason = "may still be published"  # G-4\n',
        "",
        soak(3000, "collection"),
        "G-4",
    ),
    Mutant(
        "a commit below the floor is a success",
        "src/weir/log/manifests.py",
        "        if following.version <= self.floors.load().manifest:\n",
        "        if False:\n",
        tests("tests/rules/test_gc.py"),
        "G-6",
    ),
    Mutant(
        "the hint is believed",
        "src/weir/log/manifests.py",
        "        if found is None or found.version <= floors.manifest:\n",
        "        if found is None:\n",
        soak(20000, "collection"),
        "G-7d",
    ),
    Mutant(
        "a reader takes a collected tail for the end",
        "src/weir/merge/tails.py",
        "        if floor > manifest.replay_after:\n",
        "        if False:\n",
        tests("tests/regress/test_reader_overtaken_by_collection.py"),
        "L-1",
    ),
    Mutant(
        "a fold that says nothing of itself",
        "src/weir/upkeep/compact/run.py",
        "            folded=job.marks,\n",
        "            folded={},\n",
        soak(6000, "compaction"),
        "L-7",
    ),
    Mutant(
        "a dead compactor's commit is forgotten",
        "src/weir/upkeep/compact/finish.py",
        "        if version is not None:\n            self.finish(job)\n",
        "        if False:\n            self.finish(job)\n",
        tests("tests/rules/test_compaction.py"),
        "L-4",
    ),
    Mutant(
        "compactors without a fence",
        "src/weir/upkeep/compact/run.py",
        "        claim = Claim(token, require_counted(self.core, self.lake.fence_base(token)))\n",
        "        claim = Claim(token, self.lake.open_base().version)\n",
        soak(6000, "compaction"),
        "L-4",
    ),
    Mutant(
        "a base commit in a collected place counts",
        "src/weir/upkeep/pinning.py",
        "    if version <= floor:\n",
        "    if False:\n",
        tests("tests/regress/test_base_version_in_a_collected_place.py"),
        "G-6",
    ),
    Mutant(
        "a checkpoint pins a base that is being cleaned up",
        "src/weir/upkeep/pinning.py",
        "    if base_floor(core) >= draft.base_version:\n",
        "    if False:\n",
        tests("tests/regress/test_base_version_in_a_collected_place.py"),
        "K-1b",
    ),
    Mutant(
        "a cut taken while the base moves",
        "src/weir/read/snapshot.py",
        "        if version == before and latest == number:\n",
        "        if latest == number:\n",
        tests("tests/regress/test_base_outruns_the_plan.py"),
        "L-5",
    ),
    Mutant(
        "a listed manifest that is gone means an empty shard",
        "src/weir/log/manifests.py",
        "        for _ in range(LIST_ATTEMPTS):\n",
        "        for _ in range(1):\n",
        tests("tests/regress/test_manifest_collected_between_list_and_read.py"),
        "G-7d",
    ),
    Mutant(
        "an exactly-once batch is in before it is durable",
        "src/weir/shard/once.py",
        "                self._settle(app, before, timeout)\n",
        "                pass\n",
        soak(3000, "stream"),
        "P-2",
    ),
    Mutant(
        "a task writes rows of other tasks' shards",
        "src/weir/spark/sink.py",
        "                self.layout.check_rows(batch, partition)\n",
        "",
        tests("tests/spark/test_write.py::test_p1_a_wrong_layout_is_refused"),
        "P-1",
    ),
    Mutant(
        "a large batch is committed in anybody's epoch",
        "src/weir/shard/load.py",
        "self._appender.manifests.update(change, epoch=self._appender.epoch)",
        "self._appender.manifests.update(\n"
        "            change, epoch=self._appender.manifests.require().writer_epoch\n"
        "        )",
        tests("tests/rules/test_large_batches.py"),
        "P-1",
    ),
    Mutant(
        "a batch of a Spark job is put without its token",
        "src/weir/spark/publish.py",
        "return self._writer.put_once(rows, app=token.app, version=token.version)",
        "return self._writer.put(rows).done",
        tests("tests/spark/test_write.py::test_p2_a_job_with_app_and_version_counts_once"),
        "P-2",
    ),
    Mutant(
        "the log of a large batch is live before its commit",
        "src/weir/shard/load.py",
        "dead = Generation(self._first - 1)",
        "dead = self._first",
        tests("tests/rules/test_large_batches.py"),
        "P-2",
    ),
    Mutant(
        "SSTables are pruned before their token is recorded",
        "src/weir/upkeep/gc/visit.py",
        "            Tokens(self.site).settle(latest)  # P-2",
        "            pass  # P-2",
        tests("tests/rules/test_large_batches.py"),
        "P-2",
    ),
    Mutant(
        "a large batch is claimed over live entries",
        "src/weir/shard/load.py",
        "if next(Replay(site, manifests, claim, keyed=bool(schema.primary_key)), None) is None:",
        "if True:",
        tests("tests/rules/test_large_batches.py"),
        "W-1",
    ),
    Mutant(
        "a change feed does not ask what was collected",
        "src/weir/spark/feed.py",
        "                held = kept is not None and kept.get(shard, 0) <= first\n",
        "                held = True\n",
        tests("tests/spark/test_stream.py", "-k", "named_consumer"),
        "P-3",
    ),
    Mutant(
        "the storage options of a place are printed",
        "src/weir/spark/places.py",
        "field(default_factory=dict, repr=False)",
        "field(default_factory=dict)",
        tests("tests/spark/test_read.py", "-k", "p4"),
        "P-4",
    ),
    Mutant(
        "the result of the last task is lost",
        "src/weir/spark/runner.py",
        "return [found[number] for number in range(len(tasks))]",
        "return [found[number] for number in range(len(tasks) - 1)]",
        tests("tests/spark/test_jobs.py", "-k", "p5_compaction"),
        "P-5",
    ),
    Mutant(
        "a claim at work is not renewed",
        "src/weir/upkeep/compact/jobs.py",
        "            if self._lost or now - self._told_at < RENEW:\n",
        "            if True:\n",
        tests("tests/rules/test_compaction.py", "-k", "renewed"),
        "L-4",
    ),
    Mutant(
        "reshard seals late",
        "src/weir/upkeep/reshard.py",
        "        _seal_all(core, old)\n        state = _checkpoint(core, state)\n",
        "        state = _checkpoint(core, state)\n",
        soak(1500, "reshards"),
        "C-11",
    ),
    Mutant(
        "rows on their way go to the heir as well",
        "src/weir/log/appender.py",
        "            raise self._finish_fenced(fenced, entry) from None\n        except WeirError",
        "            entry.sent = False\n"
        "            raise self._finish_fenced(fenced, entry) from None\n        except WeirError",
        soak(1500, "reshards"),
        "C-11",
    ),
    Mutant(
        "a later put is handed the rows of others",
        "src/weir/shard/ending.py",
        "        return self._told(self.failure, not_written=batches)\n",
        "        left = [b for ack, _ in self._left for b in ack.batches]\n"
        "        return self._told(self.failure, not_written=[*left, *batches])\n",
        tests("tests/rules/test_edges_outcomes.py"),
        "F-16",
    ),
    Mutant(
        "a close is told that rows on their way were not written",
        "src/weir/shard/ending.py",
        "                    sent += error.perhaps_written\n",
        "                    unsent += error.perhaps_written\n",
        tests("tests/rules/test_edges_outcomes.py"),
        "F-16",
    ),
    Mutant(
        "an interrupted entry is encoded anew",
        "src/weir/shard/state.py",
        "            return self.flying  # F-16",
        "            self.entry = None\n            return self.flying  # F-16",
        soak(1000, "interrupts"),
        "F-16",
    ),
    Mutant(
        "an interrupted close counts as done",
        "src/weir/shard/writer.py",
        "        except Exception:\n            self._stop()\n            raise\n"
        "        self._stop()\n",
        "        finally:\n            self._stop()\n",
        soak(1500, "interrupts"),
        "F-16",
    ),
    Mutant(
        "an interrupt ends the writer",
        "src/weir/shard/group.py",
        "        except Exception as error:  # noqa: BLE001  rows nobody can encode",
        "        except BaseException as error:  # noqa: BLE001  rows nobody can encode",
        soak(1500, "interrupts"),
        "F-16",
    ),
    Mutant(
        "an append after an interrupted one takes its place",
        "src/weir/log/appender.py",
        "            self._check(batches)\n            self._settle()\n",
        "            self._check(batches)\n",
        tests("tests/rules/test_edges_outcomes.py"),
        "F-16",
    ),
    Mutant(
        "an error nobody translated is taken for a refusal",
        "src/weir/log/appender.py",
        "            raise self._finish_unknown(position, entry, error) from error\n"
        "        finally:\n",
        "            entry.sent = False\n            raise\n        finally:\n",
        tests("tests/rules/test_edges_outcomes.py"),
        "F-11",
    ),
    Mutant(
        "a refusal after a lost answer is taken for the outcome",
        "src/weir/store/retry.py",
        "                if lost:\n                    raise lost from error\n",
        "",
        tests("tests/rules/test_edges_outcomes.py"),
        "F-11",
    ),
    Mutant(
        "a failing callback comes out of whoever runs it",
        "src/weir/shard/ack.py",
        "            except BaseException:\n                log.exception(",
        "            except MemoryError:\n                log.exception(",
        tests("tests/rules/test_edges_outcomes.py"),
        "F-16",
    ),
    Mutant(
        "a loop that was closed is told all the same",
        "src/weir/shard/ack.py",
        "        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody",
        "        with contextlib.suppress(KeyError):  # the loop was closed: nobody",
        tests("tests/rules/test_edges_outcomes.py", "-k", "loop_that_was_closed"),
        "F-16",
    ),
    Mutant(
        "an error does not survive pickling",
        "src/weir/errors.py",
        "        return _made_again, (type(self), self.args, cause), self.__dict__\n",
        "        return super().__reduce__()\n",
        tests("tests/rules/test_edges_outcomes.py"),
        "F-16",
    ),
    Mutant(
        "all shards failed, and the others are done",
        "src/weir/routing/receipt.py",
        '    rest = "" if len(failures) == parts else ", the others are done"\n',
        '    rest = ", the others are done"\n',
        tests("tests/rules/test_edges_outcomes.py", "-k", "partial"),
        "F-16",
    ),
    Mutant(
        "forked twins draw the same ids",
        "src/weir/env.py",
        "field(default_factory=random.SystemRandom)\n",
        "field(default_factory=random.Random)\n",
        tests("tests/rules/test_edges_process.py"),
        "F-17",
    ),
    Mutant(
        "a forked child goes on with its parent's handle",
        "src/weir/env.py",
        "        return self._forks() != self._at\n",
        "        return False\n",
        tests("tests/rules/test_edges_process.py", "-k", "a_writer_used_in_a_forked_child"),
        "F-16",
    ),
    Mutant(
        "side files are put over those of a twin",
        "src/weir/lake/sstable/write.py",
        '            self._store.put_if_absent(f"{path}/{paths.BLOOM_FILTER}", bloom.to_bytes())\n',
        '            self._store.put(f"{path}/{paths.BLOOM_FILTER}", bloom.to_bytes())\n',
        tests("tests/rules/test_edges_process.py"),
        "F-17",
    ),
    Mutant(
        "a model of a lake puts side files over those of a twin",
        "simulator/model_lake.py",
        '            self.store.put_if_absent(f"{folder}/bloom_filter.bin", name.encode())\n'
        '            self.store.put_if_absent(f"{folder}/data.arrow",',
        '            self.store.put(f"{folder}/bloom_filter.bin", name.encode())\n'
        '            self.store.put(f"{folder}/data.arrow",',
        soak(1000, "twins"),
        "F-17",
    ),
    Mutant(
        "a flush goes on with the name that is taken",
        "src/weir/shard/flush.py",
        '        tag = f"{self._env.random.getrandbits(32):08x}"\n',
        '        tag = f"{hash(self._appender.site.shard) & 0xFFFFFFFF:08x}"\n',
        soak(1000, "twins"),
        "F-17",
    ),
    Mutant(
        "a writer without another thread flushes nothing",
        "src/weir/shard/flush.py",
        "        if self._has_no_thread:\n            with self._helping:\n",
        "        if False:\n            with self._helping:\n",
        soak(1000, "twins"),
        "F-16",
    ),
    Mutant(
        "a thread that cannot be started ends the writer",
        "src/weir/env.py",
        "        except RuntimeError:  # the system has no more",
        "        except MemoryError:  # the system has no more",
        tests("tests/rules/test_edges_process.py", "-k", "at_its_end"),
        "F-16",
    ),
    Mutant(
        "nobody writes what a writer without a pump has queued",
        "src/weir/shard/group.py",
        "            last = state.last_put if self._pump is None else None\n",
        "            last = None\n",
        tests("tests/rules/test_edges_process.py", "-k", "at_its_end"),
        "F-16",
    ),
    Mutant(
        "tasks take the pump for called when it waits again",
        "src/weir/shard/group.py",
        "                state.is_pump_called = False\n",
        "",
        tests("tests/rules/test_aio.py", "-k", "after_a_pause"),
        "M-7",
    ),
    Mutant(
        "a put that does not fit waits for the flush interval",
        "src/weir/shard/group.py",
        "            or state.is_room_wanted\n",
        "            or state.is_full(1)\n",
        tests("tests/rules/test_writer.py", "-k", "does_not_fit"),
        "M-6",
    ),
    Mutant(
        "a put waits for room that no other thread makes",
        "src/weir/shard/accept.py",
        "        if not state.is_alone or (last is None and not flushes):\n",
        "        if True:\n",
        soak(1000, "twins"),
        "F-16, M-6",
    ),
    Mutant(
        "rows nobody had shaped are told to who does not come for it",
        "src/weir/shard/state.py",
        "                self.refuse(ack, self.ending.leave(ack))\n",
        "                self.refuse(ack, self.ending.refused(ack.batches))\n",
        tests("tests/rules/test_edges_shared_rows.py", "-k", "cancelled_after"),
        "F-16",
    ),
    Mutant(
        "a writer that has ended keeps the rows of a verb that looks",
        "src/weir/shard/looking.py",
        "            raise self._state.ending.refused(request.handed_back())\n",
        "            raise self._state.ending.refused()\n",
        tests("tests/rules/test_looking.py", "-k", "every_verb"),
        "F-16",
    ),
    Mutant(
        "a flush that was interrupted begins anew",
        "src/weir/shard/flush.py",
        "        if self._under_way is None or self._under_way.table is not table:\n",
        "        if True:\n",
        tests("tests/rules/test_edges_process.py", "-k", "interrupted_flush"),
        "F-16",
    ),
    Mutant(
        "no helpers once the main thread has returned",
        "src/weir/env.py",
        "        helpers = [crew.offer(work) ",
        "        from concurrent.futures import ThreadPoolExecutor\n\n"
        "        pool = ThreadPoolExecutor()\n"
        "        helpers = [pool.submit(work) ",
        tests("tests/rules/test_edges_process.py", "-k", "at_exit or main_thread"),
        "F-16",
    ),
    Mutant(
        "a put broken off while it is booked leaves its rows behind",
        "src/weir/shard/accept.py",
        "            return self._state.end(internal(error), sent=True), error\n",
        "            return [], error\n",
        tests("tests/rules/test_edges_outcomes.py", "-k", "broken_off"),
        "F-16",
    ),
    Mutant(
        "a leader interrupted before it began keeps its lead",
        "src/weir/shard/group.py",
        "            if state.leader is me:",
        "            if False:",
        tests("tests/rules/test_edges_outcomes.py", "-k", "hands_its_lead_on"),
        "F-16",
    ),
    Mutant(
        "a wait interrupted while it gives up leaves its gate behind",
        "src/weir/shard/group.py",
        "                self._leave(ack, me)\n                return\n",
        "                return\n",
        tests("tests/rules/test_edges_outcomes.py", "-k", "gives_up"),
        "F-16",
    ),
    Mutant(
        "a bad put fails those that were shaped with it",
        "src/weir/log/tiny.py",
        "        if len(run) == 1:\n            return [error]\n",
        "        if run:\n            return [error] * len(run)\n",
        tests("tests/unit/log/test_tiny.py"),
        "M-7",
    ),
    Mutant(
        "a put that timed out is shaped after its caller has its rows back",
        "src/weir/shard/group.py",
        "        if ack.unshaped is not None:\n            self.acceptor.shape()",
        "        if False:\n            self.acceptor.shape()",
        tests("tests/rules/test_edges_shared_rows.py"),
        "M-7",
    ),
    Mutant(
        "rows shaped together outgrow the bounds of their generation",
        "src/weir/shard/state.py",
        " and self.memtables.holds(more):",
        ":",
        tests("tests/rules/test_edges_shared_rows.py"),
        "F-15",
    ),
    Mutant(
        "rows half accepted when an interrupt comes are waited for",
        "src/weir/shard/accept.py",
        "                        if not ack.done:\n",
        "                        if False:\n",
        tests("tests/rules/test_edges_shared_rows.py"),
        "F-16",
    ),
    Mutant(
        "a claim on a newer manifest than the one that was probed",
        "src/weir/log/fence.py",
        "            continue  # manifest and tip are of one look",
        "            current = manifests.require()  #",
        tests("tests/regress/test_claim_planned_on_an_older_manifest.py"),
        "F-7",
    ),
    Mutant(
        "a hand-over leaves rows behind",
        "src/weir/shard/handover.py",
        "        flushed = old.flush()\n",
        "        old.flush_wal()\n        flushed = Manifests(site).require()\n",
        soak(1500, "moves"),
        "S-3",
    ),
    Mutant(
        "an opener does not ask where the log is",
        "src/weir/log/fence.py",
        "    settle(site, epoch, floors)\n",
        "",
        soak(1500, "moves"),
        "S-3",
    ),
    Mutant(
        "a checkpoint is read in the store the log is in now",
        "src/weir/log/wal_store.py",
        "        if position > current.after:\n",
        "        if position >= 0:\n",
        soak(1500, "moves"),
        "K-7",
    ),
    Mutant(
        "a tailer does not hear of a move",
        "src/weir/log/tailer.py",
        "        self.log.site(floors)  # S-3: the floors tell of a move\n",
        "",
        tests(
            "tests/rules/test_edges_log_places.py::"
            "test_s9_a_feed_that_was_open_before_follows_every_move"
        ),
        "S-9",
    ),
    Mutant(
        "entries of before a move are looked for beside the data",
        "src/weir/log/wal_store.py",
        "        record = places[index]\n",
        "        record = places[0]\n",
        tests("tests/rules/test_edges_log_places.py"),
        "S-9",
    ),
    Mutant(
        "a feed hands out what a zombie left in a collected place",
        "src/weir/log/tailer.py",
        "                self.log.require_uncollected(entries[0].position, self.log.floors())\n"
        "                yield from self._accept(entries)\n",
        "                yield from self._accept(entries)\n",
        tests(
            "tests/rules/test_edges_log_places.py::"
            "test_g7c_a_row_that_nobody_acknowledged_is_never_handed_out"
        ),
        "G-7",
    ),
    Mutant(
        "a statement writes over what came after it had read",
        "src/weir/spark/statement.py",
        "                    if len(changed):\n",
        "                    if False:\n",
        tests("tests/spark/test_statement.py"),
        "P-7",
    ),
    Mutant(
        "a statement looks before it owns the shard",
        "src/weir/spark/publish.py",
        "            if self._guard is not None:\n                self._guard(shard)\n",
        "            pass\n",
        tests("tests/spark/test_statement.py"),
        "P-7",
    ),
    Mutant(
        "a delete of a key that is put again stays",
        "src/weir/spark/statement.py",
        "                batch = batch.filter(pc.invert(gone))",
        "                batch = batch.filter(pc.invert(pc.and_(gone, False)))",
        tests("tests/spark/test_statement.py"),
        "P-7",
    ),
    Mutant(
        "a writer that left speaks for its successor",
        "src/weir/upkeep/compact/logs.py",
        "floors.left == manifest.writer_epoch\n",
        "floors.left > 0\n",
        tests("tests/rules/test_compaction_logs.py"),
        "L-6",
    ),
    Mutant(
        "rows that a writer holds in memory are folded unasked",
        "src/weir/upkeep/compact/plan.py",
        "    return manifest.announced is not None or not",
        "    return True or not",
        tests("tests/rules/test_compaction_logs.py"),
        "L-6",
    ),
    Mutant(
        "a fold passes entries above one that was flushed meanwhile",
        "src/weir/upkeep/compact/logs.py",
        "        if taken_on or current.replay_after >= through:\n",
        "        if current.replay_after >= through:\n",
        tests("tests/regress/test_fold_beside_a_flush.py"),
        "L-2",
    ),
    Mutant(
        "a clone that is ready holds no pin",
        "src/weir/upkeep/clone.py",
        "        Checkpoints(_store_of(job, tie.uri)).refresh(tie.checkpoint, expires=None)\n",
        "        Checkpoints(_store_of(job, tie.uri)).erase(tie.checkpoint)\n",
        soak(1500, "clones"),
        "C-1",
    ),
    Mutant(
        "a pin is let go of without a word to the clone",
        "src/weir/upkeep/gc/collect.py",
        " if job.dry_run or target.give_up(pin)]\n",
        "]\n",
        tests("tests/regress/test_clone_interrupted.py"),
        "C-3",
    ),
    Mutant(
        "a restore keeps what was written since",
        "src/weir/upkeep/restore.py",
        "            replay_after=last,\n",
        "            replay_after=latest.replay_after,\n",
        soak(1500, "restores"),
        "F-3",
    ),
    Mutant(
        "an entry cut off between two batches is read",
        "src/weir/format/wal_entry.py",
        "            if bytes(data[end - len(_END) : end]) != _END:\n",
        "            if False:\n",
        tests("tests/sim/test_bad_bytes.py"),
        "I",
    ),
    Mutant(
        "an id alone makes a column",
        "src/weir/format/schema.py",
        "    return mark is None or mark == (column.metadata or {}).get(COLUMN_MARK)\n",
        "    return True\n",
        tests("tests/rules/test_columns.py"),
        "L-1",
    ),
    Mutant(
        "slices of structs in structs go to Lance",
        "src/weir/lake/whole_buffers.py",
        "    if (nested and column.offset) or any(",
        "    if any(",
        tests("tests/rules/test_filters.py", "-k", "struct_in_a_struct"),
        "M-4",
    ),
    Mutant(
        "a piece of a hot shard forgets what is newer",
        "src/weir/upkeep/compact/tasks.py",
        "    newer = reader.open_units(units[:first])\n",
        "    newer = reader.open_units(units[:0])\n",
        tests("tests/rules/test_compaction_pieces.py"),
        "L-4",
    ),
    Mutant(
        "the last part of an SSTable ends where its manifest says",
        "src/weir/upkeep/compact/cut.py",
        "            yield index, index + 1, [starts[-1], _ALL_ROWS]\n",
        "            yield index, index + 1, [starts[-1], step - 1]\n",
        tests("tests/rules/test_compaction_pieces.py"),
        "L-4",
    ),
    Mutant(
        "base rows found in one part of a share are forgotten in the next",
        "src/weir/upkeep/compact/tasks.py",
        "            found.append(part.addresses[~stays])\n",
        "            found = [part.addresses[~stays]]\n",
        tests("tests/rules/test_compaction_pieces.py"),
        "L-4",
    ),
    Mutant(
        "deleted rows are read with the live ones",
        "src/weir/lake/live_rows.py",
        "        yield rows if ids.null_count == 0 else rows.filter(ids.is_valid())\n",
        "        yield rows\n",
        tests("tests/rules/test_compaction_pieces.py"),
        "L-4",
    ),
    Mutant(
        "a row of numbers that grows moves them",
        "src/weir/keys/numbers.py",
        "    used[first : first + len(row.used) - 2] = row.used[1:-1]\n",
        "    used[first - 1 : first + len(row.used) - 3] = row.used[1:-1]\n",
        tests("tests/unit/keys/test_numbers.py"),
        "M-1",
    ),
    Mutant(
        "fresh levels are filtered before the merge",
        "src/weir/merge/merge.py",
        "in winners(self.levels, self.schema",
        'in winners([type("F", (), {"rows": x.rows, "scan": lambda _, c, x=x: x.scan(c, filter='
        "self.filter)})() for x in self.levels], self.schema",
        tests("tests/rules/test_reads_model.py", "-k", "int64 or utf8"),
        "L-3",
    ),
    Mutant(
        "a base that moved while shards were pinned is taken",
        "src/weir/upkeep/pinning.py",
        "        if base.version != before:\n",
        "        if False:\n",
        tests("tests/rules/test_checkpoint.py", "-k", "k6"),
        "K-6",
    ),
    Mutant(
        "a pin does not look for a claim in between",
        "src/weir/upkeep/pinning.py",
        "        if latest.writer_epoch != manifest.writer_epoch:\n",
        "        if False:\n",
        tests("tests/rules/test_native_manifests.py", "-k", "is_whole"),
        "C-7",
    ),
    Mutant(
        "a lost prefix of a durable checkpoint is passed over",
        "src/weir/upkeep/copying.py",
        '    if start > pin.replay_after and scope != "all" and not accept_loss:\n',
        "    if False:\n",
        tests("tests/rules/test_clone.py", "-k", "c9"),
        "C-9",
    ),
    Mutant(
        "a clone in the making holds the base only",
        "src/weir/upkeep/parents.py",
        '        if lineage is None or lineage.state != "ready":\n',
        "        if lineage is None:\n",
        tests("tests/rules/test_clone.py", "-k", "c14"),
        "C-14",
    ),
    Mutant(
        "checkpoints hold nothing in former WAL stores",
        "src/weir/upkeep/gc/visit.py",
        "            self._decide_log(place, job, replace(state, wal=found))\n",
        "            kept = state.pins if place == self.site else ()\n"
        "            self._decide_log(place, job, replace(state, wal=found, pins=kept))\n",
        tests("tests/rules/test_wal_store.py", "-k", "g1"),
        "G-1",
    ),
    Mutant(
        "a planned deletion takes the table's own store",
        "src/weir/upkeep/gc/tasks.py",
        "        return core.wal_stores.bearing(batch.shard, batch.uri, batch.store_id)\n",
        "        return core.store\n",
        tests("tests/rules/test_edges_collection.py", "-k", "where_it_is_and_was"),
        "S-8",
    ),
    Mutant(
        "a deletion does not ask whose store it is",
        "src/weir/upkeep/gc/tasks.py",
        "        require_store_id(store, batch.shard, batch.store_id)\n",
        "        pass\n",
        tests("tests/rules/test_edges_collection.py", "-k", "given_away"),
        "S-8",
    ),
    Mutant(
        "a move of the log is not recorded for the table",
        "src/weir/upkeep/move_wal.py",
        "    records.update(lambda record: replace(record, wal_uri=target))\n",
        "",
        tests("tests/rules/test_edges_move_wal.py", "-k", "whole_table"),
        "S-8",
    ),
    Mutant(
        "a new shard puts its log where the handle once heard",
        "src/weir/routing/core.py",
        "                self.record = replace(self.record, wal_uri=place)\n",
        "",
        tests("tests/rules/test_edges_move_wal.py", "-k", "made_later"),
        "S-8",
    ),
    Mutant(
        "entries of a WAL store are aged by the table's clock",
        "src/weir/upkeep/gc/listing.py",
        "    return replace(found.sorted(), now=now)\n",
        "    return found.sorted()\n",
        tests("tests/rules/test_edges_collection.py", "-k", "g3"),
        "G-3",
    ),
    Mutant(
        "a change of routing from an old record",
        "src/weir/upkeep/reshard.py",
        "    record = core.refresh()\n    if found",
        "    record = core.record\n    if found",
        tests("tests/regress/test_reshard_planned_on_an_old_record.py"),
        "C-11",
    ),
    Mutant(
        "a tag deleted while tags are listed is an error",
        "src/weir/lake/base/versions.py",
        "    for _ in range(_LISTINGS):\n",
        "    for _ in range(0):\n",
        tests("tests/regress/test_tag_deleted_while_tags_are_listed.py"),
        "K-1",
    ),
    Mutant(
        "a putter whose turn somebody took sleeps on",
        "src/weir/shard/turns.py",
        "            gate.release()\n            if ack.woken:\n                return\n",
        "            if ack.woken:\n                gate.release()\n                return\n",
        tests("tests/unit/shard/test_turns.py"),
        "M-7",
    ),
    Mutant(
        "rows of one file are held as another's",
        "src/weir/lake/base/blocks.py",
        "        key = (file, per_block, number)\n",
        "        key = (per_block, number)\n",
        tests("tests/unit/lake/base/test_blocks.py"),
        "L-1",
    ),
    Mutant(
        "a successor's folded generation is taken for ours",
        "src/weir/shard/own_reads.py",
        "            self._check_folded_after_us(compacted)\n",
        "            pass\n",
        tests("tests/regress/test_zombie_reads_its_own.py"),
        "M-1",
    ),
    Mutant(
        "a repeated record of several shards is somebody else's",
        "src/weir/records/chain.py",
        "            if not self._holds(path, data):\n                raise\n",
        "            raise\n",
        tests("tests/regress/test_reshard_resumed_beside_a_claim.py"),
        "F-9",
    ),
    Mutant(
        "a change of routing waits for its own sealed rows",
        "src/weir/upkeep/reshard.py",
        "    return bool(sealed) and not sealed.issubset(_old_shards(core, old))\n",
        "    return bool(sealed)\n",
        tests("tests/regress/test_reshard_resumed_beside_a_claim.py"),
        "C-11",
    ),
    Mutant(
        "an idle writer that was fenced says where the log ends",
        "src/weir/upkeep/pinning.py",
        " or writer.epoch != manifest.writer_epoch:\n",
        ":\n",
        soak(400, "operators"),
        "K-9",
    ),
    Mutant(
        "the flush of a fenced idle writer is a cut",
        "src/weir/upkeep/pinning.py",
        "    if latest.writer_epoch != writer.epoch:\n        return None\n    return latest",
        "    if latest.writer_epoch != writer.epoch:\n        return cut\n    return latest",
        tests("tests/rules/test_edges_checkpoints.py", "-k", "k9"),
        "K-9",
    ),
    Mutant(
        "a writer that ended is not asked for the rows it took",
        "src/weir/upkeep/pinning.py",
        "        writer = core.live.get(shard)\n",
        "        writer = core.live_writer(shard)\n",
        tests("tests/rules/test_edges_checkpoints.py", "-k", "background"),
        "K-9",
    ),
    Mutant(
        "a WAL-only writer that was fenced is not asked for the rows it took",
        "src/weir/upkeep/pinning.py",
        "        writer.flush_wal()  # a WAL-only one too: what it took is durable, or told\n",
        "",
        soak(400, "operators"),
        "K-9",
    ),
    Mutant(
        "a writer of upkeep takes the place of the handle's own",
        "src/weir/routing/shards.py",
        "    core.note_move(shard.id)\n",
        "    core.note_move(shard.id)\n    core.live[shard.id] = opened\n",
        tests("tests/rules/test_edges_checkpoints.py", "-k", "forget"),
        "K-9",
    ),
    Mutant(
        "a shard that is sealed under a checkpoint is an error",
        "src/weir/upkeep/pinning.py",
        "            except SealedShard:\n                continue",
        "            except SealedShard:\n                raise",
        tests("tests/rules/test_edges_checkpoints.py", "-k", "sealed_while"),
        "K-10",
    ),
    Mutant(
        "the routing is read once",
        "src/weir/upkeep/pinning.py",
        "        if core.refresh().routing_version != routing:\n",
        "        routing = core.refresh().routing_version\n        if False:\n",
        soak(400, "cuts"),
        "K-10",
    ),
    Mutant(
        "a clone of the moment before a reshard stays sealed",
        "src/weir/upkeep/clone.py",
        "            sealed=pin.sealed and not routed,\n",
        "            sealed=pin.sealed,\n",
        soak(400, "cuts"),
        "K-10",
    ),
    Mutant(
        "a tag that goes while it is released is an error",
        "src/weir/lake/lance_errors.py",
        '    return "ref not found" in text or ("_refs/tags/" in text and "not found" in text)\n',
        '    return "ref not found" in text\n',
        tests("tests/rules/test_edges_checkpoints.py", "-k", "k5"),
        "K-5",
    ),
    Mutant(
        "a clone that is not there was deleted",
        "src/weir/upkeep/parents.py",
        '    if not any(naming):\n        return "unseen", None\n',
        '    if not any(naming):\n        return "let go", None\n',
        tests("tests/rules/test_edges_clones.py", "-k", "mounted"),
        "C-15",
    ),
    Mutant(
        "an operator's word is taken of a clone that is there",
        "src/weir/upkeep/parents.py",
        '        if _word(core, pin)[0] == "holds" or not _end(core, pin):\n',
        "        if False:\n",
        tests("tests/rules/test_edges_clones.py", "-k", "word"),
        "C-15",
    ),
    Mutant(
        "tokens of a writer that died are looked for above R only",
        "src/weir/shard/once.py",
        "            self._tokens.recover(app, epoch=self._appender.epoch, through=claim.fence)\n",
        "            pass\n",
        tests("tests/rules/test_edges_tokens.py", "-k", "native_flush"),
        "P-6",
    ),
    Mutant(
        "an heir does not ask the shards of former routings",
        "src/weir/routing/shards.py",
        "        opened.once.untaken = untaken(core)\n",
        "        opened.once.untaken = None\n",
        soak(400, "tokens"),
        "P-6",
    ),
    Mutant(
        "a shard is sealed with tokens that are in its log only",
        "src/weir/upkeep/reshard.py",
        "epoch=writer.epoch, through=flushed.replay_after",
        "epoch=0, through=flushed.replay_after",
        tests("tests/rules/test_edges_tokens.py", "-k", "reshard"),
        "P-6",
    ),
    Mutant(
        "a clone does not carry the tokens of flushed batches",
        "src/weir/upkeep/clone.py",
        "    Tokens(copy.site()).carry(merged(dict(pin.tokens), by_folder(log_.tokens)))\n",
        "    Tokens(copy.site()).carry(by_folder(log_.tokens))\n",
        soak(400, "tokens"),
        "P-6",
    ),
    Mutant(
        "a checkpoint takes tokens of batches after its cut",
        "src/weir/upkeep/pinning.py",
        "        if _tokens(core, manifest, floors) != known:\n",
        "        known = _tokens(core, manifest, floors)\n        if False:\n",
        tests("tests/rules/test_edges_tokens.py", "-k", "checkpoint"),
        "P-6",
    ),
    Mutant(
        "a new query goes on with another one's numbers",
        "src/weir/spark/queries.py",
        "    if owner != query:\n",
        "    if False:\n",
        tests("tests/rules/test_edges_tokens.py", "-k", "name_of_an_application"),
        "P-6",
    ),
    Mutant(
        "a stream is not asked whose numbers it uses",
        "src/weir/spark/sink.py",
        "            require_own_numbers(table.core, self.app, query, token.version)\n",
        "            pass\n",
        tests("tests/spark/test_stream.py", "-k", "p6 and stream"),
        "P-6",
    ),
    Mutant(
        "the token of a zombie in a collected place counts",
        "src/weir/shard/tokens.py",
        "        if position > floor:\n",
        "        if True:\n",
        tests("tests/regress/test_token_of_a_zombie.py"),
        "P-6",
    ),
    Mutant(
        "an error of the store is the end of a log beside the data",
        "src/weir/routing/core.py",
        "            if latest_record(self.store, manifest.shard_id).uri is None:\n",
        "            if False:\n",
        tests("tests/regress/test_error_is_no_end_of_the_log.py"),
        "S-7",
    ),
    Mutant(
        "only the decoder knows how large an entry may be",
        "src/weir/format/wal_entry.py",
        "    if size > max_bytes:\n        raise _too_large(size, max_bytes)\n",
        "",
        tests("tests/rules/test_edges_intake.py"),
        "F-15",
        more=(
            (
                "        if len(entry) > self._max_bytes:\n",
                "        if len(entry) > 1 << 40:\n",
            ),
        ),
    ),
    Mutant(
        "a null below a null struct cannot be read",
        "src/weir/format/nested.py",
        "    return pa.array(_Typed(column, dtype))\n",
        "    return column.cast(dtype, safe=safe)\n",
        tests("tests/rules/test_edges_intake.py"),
        "F-15",
    ),
    Mutant(
        "a null in a nested field that may hold none is accepted",
        "src/weir/format/nested.py",
        "        if not child.nullable and values.null_count:\n            return where\n",
        "",
        tests("tests/rules/test_edges_intake.py"),
        "F-15",
    ),
    Mutant(
        "links are followed",
        "src/weir/store/folders.py",
        '        if found == (self._real + lead or "/"):\n',
        "        if found:\n",
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "Lance cleans up behind links",
        "src/weir/lake/pylance_lake.py",
        "            versions.require_no_links(self.store)\n",
        "            pass\n",
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "an SSTable may be called anything",
        "src/weir/format/paths.py",
        "    if not isinstance(name, str) or not _FOLDER.fullmatch(name) or name in _TAKEN:\n",
        "    if not isinstance(name, str):\n",
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "a record may name a place in any spelling",
        "src/weir/store/open.py",
        "        if isinstance(value, str) and normalize(value) == value:\n",
        "        if isinstance(value, str) and normalize(value):\n",
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "two commits of one writer at once",
        "src/weir/shard/flush.py",
        "            with self._publishing:\n"
        "                self._publish(table, flush.entry, flush.tried)\n",
        "            self._publish(table, flush.entry, flush.tried)\n",
        tests("tests/rules/test_edges_own_reads.py"),
        "M-1",
    ),
    Mutant(
        "a search reads a MemTable that grows under it",
        "src/weir/shard/own_reads.py",
        "(table.generation, table.level.now())",
        "(table.generation, table.level)",
        soak(1000, "own-reads"),
        "M-1",
    ),
    Mutant(
        "a bool in a vector is a number",
        "src/weir/format/python_values.py",
        "        if is_whole.any() or ((numbers == 0) | (numbers == 1)).any():\n",
        "        if is_whole.any():\n",
        tests("tests/unit/format/test_exact.py", "-k", "vectors"),
        "M-9",
    ),
    Mutant(
        "a phrase is found wherever its words are",
        "src/weir/search/text_query.py",
        "            matches[at] = [self._is_in(text, analyzer) for text in texts]\n",
        "            matches[at] = [text is not None for text in texts]\n",
        tests("tests/rules/test_search_queries.py"),
        "L-1",
    ),
    Mutant(
        "an index without positions leaves out by the words of a phrase",
        "src/weir/search/text_query.py",
        "[one for one in self.must_not if positions or not one.needs_judging]",
        "self.must_not",
        tests("tests/rules/test_search_queries.py"),
        "L-1",
    ),
    Mutant(
        "a level's own scores count beside others",
        "src/weir/search/plan.py",
        "if len(sources) == 1 and isinstance",
        "if isinstance",
        tests("tests/rules/test_search.py", "-k", "compare"),
        "L-1",
    ),
    Mutant(
        "a search stops at the first rows of a range",
        "src/weir/search/ranking.py",
        "        if offered.exhausted or merged.worst <= offered.bound:\n",
        "        if offered.exhausted or len(merged.values) or merged.worst <= offered.bound:\n",
        tests("tests/rules/test_search_queries.py", "-k", "range"),
        "L-1",
    ),
    Mutant(
        "a writer plans its own reads once",
        "src/weir/shard/own_reads.py",
        "            return replanned(run, self._appender.site)\n",
        "            return run()\n",
        tests("tests/rules/test_edges_own_reads.py"),
        "G-12",
    ),
    Mutant(
        "a clone lets go of checkpoints it does not own",
        "src/weir/upkeep/parents.py",
        "    if not same_place(held.owner, owner):\n",
        "    if held.id != pin.checkpoint:\n",
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "a base may name the files of any place",
        "src/weir/lake/pylance_lake.py",
        "        for place in borrowed_places(self.store, version) - self._agreed:\n",
        "        for place in borrowed_places(self.store, version) & self._agreed:\n",
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "any unfinished clone that names a pin is given up",
        "src/weir/upkeep/parents.py",
        "p.checkpoint == pin.id and same_place(p.uri, core.uri) for p in lineage.pins)\n",
        "p.checkpoint == pin.id for p in lineage.pins)\n",
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "a clone pins what its lineage names, whosesoever it is",
        "src/weir/upkeep/clone.py",
        "            if not same_place(source.owner, job.uri if standing else job.core.uri):\n",
        "            if source.base_version < 0:\n",
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "a restore trusts the SSTables that a record names",
        "src/weir/upkeep/restore.py",
        "    _require_tables(core, target)\n",
        "",
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "what was handed back is written by the next who leads",
        "src/weir/shard/state.py",
        "        if self.failure is not None:\n            return []  # F-13",
        "        if False:\n            return []  # F-13",
        tests("tests/rules/test_edges_outcomes.py", "-k", "handed_back"),
        "F-13",
    ),
    Mutant(
        "a flush is helped with before its thread is started",
        "src/weir/shard/flush.py",
        "        return self._state.is_alone and self._thread is None\n",
        "        return self._thread is None\n",
        tests("tests/sim/test_simulator.py", "-k", "test_seeds_that_failed_once and writers"),
        "F-16",
    ),
    Mutant(
        "a version from the middle of a fold stays unmarked",
        "src/weir/upkeep/compact/run.py",
        "        return bool(waiting) or _is_unmarked(base) or bool(self._open_logs())\n",
        "        return bool(waiting) or bool(self._open_logs())\n",
        tests("tests/rules/test_edges_base.py", "-k", "middle_of_a_fold"),
        "L-7",
    ),
    Mutant(
        "a wait that times out as the writer ends hears of the time only",
        "src/weir/shard/ack.py",
        "            if self._group.unclaim(self):\n                raise\n",
        "            self.claimed = False\n            raise\n",
        tests("tests/rules/test_edges_outcomes.py", "-k", "times_out_as"),
        "F-16",
    ),
    Mutant(
        "stray entries are no reason to refuse a place",
        "src/weir/log/stamp.py",
        "    if next(iter(wal.list(paths.wal_dir(shard))), None) is not None:\n",
        "    if False:\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "stray"),
        "S-8",
    ),
    Mutant(
        "a scan takes what it finds where an entry was collected",
        "src/weir/read/reader.py",
        "        pinned = self.snapshot.is_pinned\n",
        "        pinned = True\n",
        tests("tests/rules/test_reads.py", "-k", "g7b"),
        "G-7b",
    ),
    Mutant(
        "a consumer that was registered was looked after",
        "src/weir/spark/feed_offsets.py",
        "    if standing != wanted and not consumer.is_beginning:\n",
        "    if standing != wanted:\n",
        tests("tests/rules/test_edges_feeds.py", "-k", "registered"),
        "P-3",
    ),
    Mutant(
        "a read looks at shards while their routing changes",
        "src/weir/read/snapshot.py",
        "        if version == before and latest == number:\n",
        "        if version == before:\n",
        tests("tests/rules/test_reads.py", "-k", "c11"),
        "C-11",
    ),
    Mutant(
        "a record opens any place for the log",
        "src/weir/shard/handover.py",
        "            require_named(wal, consent)\n",
        "            name_table(wal, consent.root)\n",
        tests("tests/rules/test_edges_outside.py", "-k", "opens_no_place"),
        "G-13",
    ),
    Mutant(
        "compressed entries are held by their stored size",
        "src/weir/format/wal_entry.py",
        "        size=held,\n",
        "        size=len(data),\n",
        tests("tests/rules/test_edges_memory.py", "-k", "compressed"),
        "L-10",
    ),
    Mutant(
        "a few kilobytes may ask for a gigabyte",
        "src/weir/format/wal_entry.py",
        "min(max_bytes, EXPANDED_BYTES_MAX, max(_EXPANDED_FREE, EXPANDED_RATIO * size))\n",
        "max_bytes\n",
        tests("tests/unit/format/test_wal_entry.py"),
        "G-13",
    ),
    Mutant(
        "expired credentials are tried again and again",
        "src/weir/store/object_errors.py",
        "    if denied or refused or status in (401, 403):\n",
        "    if denied or status in (401, 403):\n",
        tests("tests/contract/test_answers.py"),
        "F-11",
    ),
    Mutant(
        "a log is wherever its records say, whosesoever it is",
        "src/weir/log/wal_store.py",
        "        if not same_place(found.table, consent.root) and not consent.covers(wal.uri):\n",
        "        if found.table is None and not consent.covers(wal.uri):\n",
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "discarding a clone empties its whole place",
        "src/weir/upkeep/parents.py",
        "for folder in paths.TABLE_FOLDERS for meta in store.list(folder)]\n",
        'for meta in store.list("")]\n',
        tests("tests/rules/test_edges_outside.py"),
        "G-13",
    ),
    Mutant(
        "what dead claims left in a lost store is used again",
        "src/weir/shard/handover.py",
        "    site = _switch(stores, manifests, target, epoch, passing=epoch)\n",
        "    site = _switch(stores, manifests, target, epoch)\n",
        tests("tests/rules/test_wal_store.py", "-k", "dead_claims"),
        "S-2",
    ),
    Mutant(
        "positions that were passed over are looked for in the store",
        "src/weir/log/site.py",
        "        if position > self.wal_empty_after:\n",
        "        if False:\n",
        tests("tests/rules/test_wal_store.py", "-k", "passed"),
        "S-2",
    ),
    Mutant(
        "rows on their way to an heir are lost with an error of the store",
        "src/weir/routing/reroute.py",
        "        except StoreError as unasked:\n",
        "        except ZeroDivisionError as unasked:\n",
        tests("tests/rules/test_split.py", "-k", "f16"),
        "F-16",
    ),
    Mutant(
        "a flushed read sees an heir without the shard before it",
        "src/weir/read/snapshot.py",
        "        if number is None or records.last_number(number) == number:\n",
        "        if True:\n",
        tests("tests/rules/test_reads.py", "-k", "c11"),
        "C-11",
    ),
    Mutant(
        "a log is empty once R has passed its mark",
        "src/weir/log/floors.py",
        "        return ended and manifest.replay_after >= max(manifest.last_seen, self.used)\n",
        "        return manifest.replay_after >= max(manifest.last_seen, self.used, self.open)\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "others_moved"),
        "S-7",
    ),
    Mutant(
        "a move that was begun is taken for one that was told",
        "src/weir/upkeep/move_wal.py",
        "            if record.seq > floors.store and not record.prepared:\n",
        "            if False:\n",
        tests("tests/rules/test_edges_move_wal.py", "-k", "s3_readers"),
        "S-3",
    ),
    Mutant(
        "a log is shut while an entry is under way",
        "src/weir/log/appender.py",
        "            ongoing = self._in_flight or (reached is not None and last > reached)\n",
        "            ongoing = reached is not None and last > reached\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "under_way"),
        "S-7",
        more=(("            ongoing = ongoing or self._unsettled is not None\n", ""),),
    ),
    Mutant(
        "a lost log is needed though nothing is missing",
        "src/weir/routing/core.py",
        "            if not floors.is_closed(manifest):\n                raise\n",
        "            raise\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "nothing_missing or sealed"),
        "S-7",
    ),
    Mutant(
        "what is not found on an unmounted disk is not there",
        "src/weir/log/tip.py",
        "                check_identity(site)\n",
        "",
        tests("tests/rules/test_edges_wal_store.py", "-k", "looked_before"),
        "S-7",
    ),
    Mutant(
        "a fast snapshot believes an unmounted disk",
        "src/weir/read/fast_snapshot.py",
        "            return None  # what is not in it may be in the log all the same (S-7)\n",
        "            pass\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "looked_before"),
        "S-7",
    ),
    Mutant(
        "rows go into the hole where a disk was",
        "src/weir/log/appender.py",
        "            if self._presence is not None:\n",
        "            if False:\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "the_hole"),
        "S-7",
    ),
    Mutant(
        "a fence goes into the hole where a disk was",
        "src/weir/log/fence.py",
        "    check_identity(site)  # S-7: a fence in the folder where its disk was fences nobody\n",
        "",
        tests("tests/rules/test_edges_unmounts.py", "-k", "a_fence_in_the_hole"),
        "S-7",
    ),
    Mutant(
        "any disk with an id will do",
        "src/weir/log/stamp.py",
        "        if found is None or found != self._seen:\n",
        "        if found is None:\n",
        tests("tests/rules/test_edges_unmounts.py", "-k", "another_disk"),
        "S-7",
    ),
    Mutant(
        "a disk that is back proves what was looked for in its hole",
        "src/weir/log/tip.py",
        "    check_mounted(site)\n    while True:",
        "    while True:",
        tests("tests/rules/test_edges_unmounts.py", "-k", "comes_back"),
        "S-7",
    ),
    Mutant(
        "a glance takes the id of a disk that is back",
        "src/weir/read/fast_snapshot.py",
        "    return True\n\n\ndef _advance(",
        "    return True\n\n\n_are_mounted = bool\n\n\ndef _advance(",
        tests("tests/rules/test_edges_unmounts.py", "-k", "comes_back"),
        "S-7",
    ),
    Mutant(
        "a checkpoint whose disk is gone is called collected",
        "src/weir/log/tailer.py",
        "                if pinned:\n",
        "                if False:\n",
        tests("tests/rules/test_edges_unmounts.py", "-k", "not_called_collected"),
        "S-7",
    ),
    Mutant(
        "an open takes a log that is ahead of its manifest",
        "src/weir/log/fence.py",
        "    if header is None or header.epoch <= current.writer_epoch:\n        return False\n",
        "    return False\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "f7_no_open"),
        "F-7",
    ),
    Mutant(
        "a wrong WAL store is refused after the claim",
        "src/weir/shard/handover.py",
        "    _id_for(stores, shard, target)\n    current = Manifests(site).latest()\n",
        "    current = Manifests(site).latest()\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "before_anybody"),
        "S-8",
    ),
    Mutant(
        "a clone takes the WAL store of its parent",
        "src/weir/upkeep/copying.py",
        "        if found is not None and found != mine:\n",
        "        if False:\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "parents_store"),
        "S-8",
    ),
    Mutant(
        "old values of a change are those of now",
        "src/weir/spark/images.py",
        "table.get(keys, checkpoint=pinned)",
        "table.get(keys)",
        tests("tests/spark/test_change_feed.py", "-k", "every_change"),
        "P-3",
    ),
    Mutant(
        "a feed lets go of the rows before what it has not read",
        "src/weir/spark/image_feed.py",
        "            if before is not None and before != pinned.id:\n",
        "            before = pinned.id\n            if before:\n",
        tests("tests/spark/test_change_feed.py", "-k", "goes_on_where"),
        "P-3",
    ),
    Mutant(
        "a batch of the feed holds a sealed shard's entries and its heirs'",
        "src/weir/spark/feed_offsets.py",
        "    first_routing = min(known.values())\n",
        "    first_routing = max(known.values())\n",
        tests("tests/spark/test_change_feed.py", "-k", "two_reshards"),
        "P-3",
    ),
    Mutant(
        "the place of another table is a WAL store",
        "src/weir/shard/handover.py",
        "        require_new(wal, shard)\n",
        "",
        tests("tests/rules/test_edges_wal_store.py", "-k", "no_wal_store"),
        "S-8",
    ),
    Mutant(
        "a first open with a WAL store claims twice",
        "src/weir/shard/handover.py",
        "    if current is not None and current.writer_epoch == UNCLAIMED:\n",
        "    if False:\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "claims_once"),
        "F-1",
    ),
    Mutant(
        "a boot clock that stands still vouches for a proof",
        "src/weir/log/ownership.py",
        "        return self.stored is not None and 0 <= now.stored - self.stored < lifetime\n",
        "        return True\n",
        tests("tests/rules/test_edges_ownership.py", "-k", "f18"),
        "F-18",
    ),
    Mutant(
        "a put that was repeated is as young as any",
        "src/weir/store/retry.py",
        "SOMETIME if stored is None else stored",
        "stored",
        tests("tests/rules/test_edges_ownership.py", "-k", "f18"),
        "F-18",
    ),
    Mutant(
        "any fence_ttl is allowed",
        "src/weir/log/ownership.py",
        "    if chosen > site.fence_ttl:\n",
        "    if False:\n",
        tests("tests/rules/test_edges_ownership.py", "-k", "g7b"),
        "G-7b",
    ),
    Mutant(
        "a load closes logs with a fence_ttl of its own",
        "src/weir/upkeep/loads.py",
        "core.record.writer_defaults, enable_memtable=True, index_configs=())\n    cuts",
        "core.record.writer_defaults, enable_memtable=True, fence_ttl=60)\n    cuts",
        tests("tests/rules/test_edges_ownership.py", "-k", "replacing_load"),
        "G-7b",
    ),
    Mutant(
        "a site knows nothing of its table's fence_ttl",
        "src/weir/log/wal_store.py",
        "            self._fence_ttl(),\n",
        "",
        tests("tests/rules/test_edges_ownership.py", "-k", "g7b"),
        "G-7b",
    ),
    Mutant(
        "a tail is cut by the number of its entries alone",
        "src/weir/read/reader.py",
        "            if position < last and held + size > self.core.env.limits.read_bytes:\n",
        "            if False:\n",
        tests("tests/rules/test_edges_memory.py"),
        "L-10",
    ),
    Mutant(
        "a group is as large as its buffer",
        "src/weir/shard/state.py",
        "        most = min(self.config.max_wal_buffer_size, self.env.limits.entry_bytes // 4)\n",
        "        most = self.config.max_wal_buffer_size\n",
        soak(1000, "limits"),
        "F-15",
    ),
    Mutant(
        "a tail that is held grows with the log",
        "src/weir/merge/tail_levels.py",
        "        return self.nbytes > self.most\n",
        "        return False\n",
        soak(1000, "limits"),
        "L-10",
    ),
    Mutant(
        "a round of gets takes whatever it finds",
        "src/weir/store/bounded.py",
        "    found = store.get_many(paths, first=share)\n",
        "    return store.get_many(paths)\n",
        tests("tests/rules/test_edges_memory.py"),
        "L-10",
    ),
    Mutant(
        "a fold in memory believes its plan",
        "src/weir/upkeep/compact/tasks.py",
        "        if held > WHOLE_READS * core.env.limits.read_bytes:\n",
        "        if False:\n",
        tests("tests/rules/test_edges_memory.py", "-k", "planned"),
        "L-10",
    ),
    Mutant(
        "a fold known by nothing that others leave alone",
        "src/weir/lake/base/fold_commit.py",
        "    noted = folded_into(base.dataset)\n",
        "    return {}\n    noted = folded_into(base.dataset)\n",
        soak(600, "strangers"),
        "L-7",
    ),
    Mutant(
        "what others brought to the base is not looked at",
        "src/weir/lake/base/fold_commit.py",
        "    return combine([kept, hide(latest.version, others)]) if others else kept\n",
        "    return kept\n",
        soak(600, "strangers"),
        "L-8",
    ),
    Mutant(
        "a replacing load that is no job",
        "src/weir/upkeep/loads.py",
        "    hold.plan(job)\n",
        "    hold.require()\n",
        tests("tests/rules/test_edges_loads.py", "-k", "completed"),
        "L-7",
    ),
    Mutant(
        "older rows stay above a load",
        "src/weir/upkeep/loads.py",
        "        if all(folded.get(shard, 0) >= number for shard, number in marks.items()):\n",
        "        if True:\n",
        tests("tests/rules/test_edges_loads.py", "-k", "l9"),
        "L-9",
    ),
    Mutant(
        "a replacing load says nothing of the generations it ends",
        "src/weir/upkeep/loads.py",
        "        folded=job.marks if job is not None else {},\n",
        "        folded={},\n",
        soak(600, "loads"),
        "L-7",
    ),
    Mutant(
        "a tailer does not ask whether a place was collected",
        "src/weir/log/tailer.py",
        "                self.log.require_uncollected(entries[0].position, self.log.floors())\n"
        "                yield from self._accept(entries)\n",
        "                yield from self._accept(entries)\n",
        soak(3000, "feeds"),
        "G-7c",
    ),
    Mutant(
        "a consumer holds what was collected before it was known",
        "src/weir/spark/feed_offsets.py",
        "    late = passed_by(core, standing)\n",
        "    late: dict[UUID, int] = {}\n",
        soak(1500, "feeds"),
        "P-3",
    ),
    Mutant(
        "a following feed begins a new shard with what is left of it",
        "src/weir/read/changes.py",
        " and floor and (self._resumes or self._is_late):\n",
        " and floor and self._resumes:\n",
        tests("tests/rules/test_edges_feeds.py", "-k", "g7c"),
        "G-7c",
    ),
    Mutant(
        "a load that lost its claim after its commit is to be run again",
        "src/weir/upkeep/loads.py",
        "    except WeirError as error:\n        # L-7",
        "    except StoreError as error:\n        # L-7",
        soak(600, "loads"),
        "L-7",
        (("    UnknownOutcome,\n    WeirError,\n", "    StoreError,\n    UnknownOutcome,\n"),),
    ),
    Mutant(
        "a load in a collected place counts",
        "src/weir/upkeep/loads.py",
        "    if version <= floor:\n",
        "    if False:\n",
        soak(1000, "loads"),
        "G-6",
    ),
    Mutant(
        "a load whose base was cleaned up is told as damage",
        "src/weir/upkeep/loads.py",
        "        if core.lake.open_base().version == base.version:\n",
        "        if True:\n",
        soak(1000, "loads"),
        "G-12",
    ),
    Mutant(
        "a feed passes over a lost log that it has not read",
        "src/weir/read/changes.py",
        "        if self._resumes or self._is_late or shard in self._begun:\n",
        "        if False:\n",
        tests("tests/rules/test_edges_lost_feed.py"),
        "S-7",
    ),
    Mutant(
        "a log that was lost and replaced is waited for by feeds",
        "src/weir/shard/handover.py",
        '    manifests.floors.raise_to("wal", manifests.require().replay_after)\n',
        "",
        tests("tests/rules/test_edges_lost_feed.py"),
        "S-7",
    ),
    Mutant(
        "an entry above R is left out because of its tag",
        "src/weir/log/tags.py",
        "    return keyed or entry.generation is None or ",
        "    return entry.generation is None or ",
        tests("tests/rules/test_edges_tags.py"),
        "F-14",
    ),
    Mutant(
        "a MemTable writer tags below the log it replayed",
        "src/weir/shard/writer.py",
        "            appender.tagging.begin_at(replay.begins())\n",
        "            pass\n",
        tests("tests/rules/test_edges_tags.py"),
        "F-14",
    ),
    Mutant(
        "a fold does not look at the tag that was announced",
        "src/weir/upkeep/compact/logs.py",
        "    if (current.announced or 0) <= generation:\n",
        "    if current.announced is not None:\n",
        soak(3000, "modes"),
        "F-14",
    ),
    Mutant(
        "a fold passes the last entry of an owner that announces nothing",
        "src/weir/upkeep/compact/logs.py",
        "        kept = fold.after if fold.last is None else fold.last - 1\n",
        "        kept = fold.through\n",
        tests("tests/rules/test_edges_tags.py"),
        "F-14",
    ),
    Mutant(
        "tagged rows follow untagged ones in one log",
        "src/weir/shard/writer.py",
        "        if not replay.keeps_the_rule:\n",
        "        if False:\n",
        tests("tests/rules/test_edges_tags.py"),
        "F-14",
    ),
    Mutant(
        "a MemTable outgrows the bounds of its generation",
        "src/weir/shard/memtable.py",
        "        if not self._bounds.has_room(self.active.filled, more):\n",
        "        if False:\n",
        tests("tests/interop/test_bounds_pylance.py"),
        "F-15",
    ),
    Mutant(
        "a writer's own settings outgrow the table's",
        "src/weir/routing/shards.py",
        "(config or defaults).within(defaults)",
        "(config or defaults)",
        tests("tests/interop/test_bounds_pylance.py"),
        "F-15",
    ),
    Mutant(
        "a manifest with R above L is taken by its word",
        "src/weir/format/manifest.py",
        "Position(max(message.last_seen, message.replay_after))",
        "Position(message.last_seen)",
        tests("tests/rules/test_edges_open.py"),
        "F-3",
    ),
    Mutant(
        "a fenced writer is not told where it was stopped",
        "src/weir/shard/ending.py",
        "                position=failure.position,\n",
        "",
        tests("tests/rules/test_edges_open.py"),
        "F-13",
    ),
    Mutant(
        "of two first opens one is told that the store is another table's",
        "src/weir/shard/handover.py",
        "        _id_for(stores, site.shard, target)  # raises when it is another table's\n",
        "        raise\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "f1"),
        "F-1",
    ),
    Mutant(
        "the log of a sealed shard may go on",
        "src/weir/log/floors.py",
        "        ended = self.open <= self.shut or manifest.status is Status.SEALED\n",
        "        ended = self.open <= self.shut\n",
        tests("tests/rules/test_edges_wal_store.py", "-k", "s5"),
        "S-5",
    ),
    Mutant(
        "a base that others overwrote is read",
        "src/weir/routing/core.py",
        "        require_weir_base(base, self.record.primary_key, self.uri)\n",
        "",
        tests("tests/rules/test_edges_overwritten.py"),
        "L-8",
    ),
    Mutant(
        "a long task says nothing of itself",
        "src/weir/upkeep/tasks.py",
        '        with regularly(core.env, lambda: tell(str(tasks[0]["run"]), 0)):\n',
        "        if True:\n",
        tests("tests/rules/test_edges_base.py", "-k", "renews_its_claim"),
        "L-4",
    ),
    Mutant(
        "a large file is copied whole",
        "src/weir/upkeep/copying.py",
        "workers=WORKERS)) + sum(map(in_parts, large))\n",
        "workers=WORKERS)) + sum(map(one, large))\n",
        tests("tests/rules/test_edges_copying.py"),
        "C-10",
    ),
    Mutant(
        "what native writers replay may outgrow their MemTable",
        "src/weir/shard/memtable.py",
        "        if not self._bounds.has_room(self.active.filled, more):\n",
        "        if False:\n",
        soak(1500, "modes"),
        "F-15",
    ),
    Mutant(
        "an open that fails leaves the threads it began",
        "src/weir/shard/writer.py",
        "            flusher.publish_replayed()\n",
        "            flusher.flush_all(lambda: None)\n",
        tests("tests/regress/test_open_that_fails_leaves_no_thread.py"),
        "M-8",
    ),
    Mutant(
        "a rewrite of files takes what tells of a fold with it",
        "simulator/model_fragments.py",
        '            return self._next(base, "rewrite", made)\n',
        '            return self._next(base, "rewrite", made, notes={})\n',
        soak(600, "strangers"),
        "L-7",
    ),
    Mutant(
        "the first routing has ids that LanceDB does not derive",
        "src/weir/format/sharding.py",
        "    if routing_version == FIRST_ROUTING:\n",
        "    if False:\n",
        tests("tests/unit/format/test_sharding.py"),
        "X-1",
    ),
    Mutant(
        "native writers are let in beside a second WAL store",
        "src/weir/routing/natives.py",
        "(spec, replace(spec, spec_id=spec.spec_id + 1)) if elsewhere else (spec,)",
        "(spec,)",
        tests("tests/rules/test_shared_tables.py"),
        "X-1",
    ),
    Mutant(
        "native writers are shut out after the log was moved",
        "src/weir/upkeep/move_wal.py",
        "    if target is not None:\n        tell_natives(core)",
        "    if False:\n        tell_natives(core)",
        tests("tests/rules/test_shared_tables.py"),
        "X-1",
    ),
    Mutant(
        "a table of 0.1.0 goes on offering LanceDB its spec",
        "src/weir/upkeep/exclusive.py",
        "    if leaves or (core.record.format == 1 and core.record.spec == 1):\n",
        "    if leaves:\n",
        tests("tests/regress/test_tables_of_0_1_0.py"),
        "X-1",
    ),
    Mutant(
        "a reshard does not seal shards that name no value",
        "src/weir/upkeep/reshard.py",
        "            or _is_unnamed(core, old.sharding, old, manifest)\n",
        "            or False\n",
        tests("tests/rules/test_shared_tables.py"),
        "X-2",
    ),
    Mutant(
        "columns left out of an update are null in the log",
        "src/weir/shard/actions.py",
        "            else as_type(_whole(current.column(column.name)), column.type)\n",
        "            else pa.nulls(given.num_rows, column.type)\n",
        tests("tests/rules/test_looking.py"),
        "O-1",
    ),
    Mutant(
        "a decision does not look again when a put came between",
        "src/weir/shard/round.py",
        "        return len(self._since) == known\n",
        "        return True\n",
        tests("tests/rules/test_looking.py"),
        "O-2",
    ),
    Mutant(
        "who gave up is decided for all the same",
        "src/weir/shard/round.py",
        "        there = [call for call in self._calls if not call.left]\n",
        "        there = list(self._calls)\n",
        tests("tests/rules/test_looking.py", "-k", "gave_up"),
        "O-2",
    ),
    Mutant(
        "an update that inserts does not know of the one before it",
        "src/weir/shard/decide.py",
        "            had[index] = True\n",
        "            pass\n",
        tests("tests/rules/test_looking.py", "-k", "told_of_its_own"),
        "O-2",
    ),
    Mutant(
        "requests of a group do not see each other's rows",
        "src/weir/shard/decide.py",
        "            newest.take_in(verdict.rows)\n",
        "            pass\n",
        tests("tests/rules/test_looking.py"),
        "O-2",
    ),
    Mutant(
        "a decision does not look again, and many threads decide",
        "src/weir/shard/round.py",
        "        return len(self._since) == known\n",
        "        return True\n",
        soak(400, "decisions"),
        "O-2",
    ),
    Mutant(
        "a zombie tells of what it skipped",
        "src/weir/shard/looking.py",
        "            self._reads.require_owner()  # O-4: a successor may have decided otherwise\n",
        "            pass\n",
        soak(400, "decisions"),
        "O-4",
    ),
    Mutant(
        "an update keeps what nobody wrote",
        "src/weir/shard/actions.py",
        "            else as_type(_whole(current.column(column.name)), column.type)\n",
        "            else pa.nulls(given.num_rows, column.type)\n",
        soak(400, "decisions"),
        "O-1",
    ),
    Mutant(
        "rows of a decision that nobody waits for are lost in silence",
        "src/weir/shard/round.py",
        "            ack.claimed = self._waits  # else",
        "            ack.claimed = True  # else",
        soak(400, "decisions"),
        "F-16",
    ),
    Mutant(
        "a skip does not wait for the rows it rested on",
        "src/weir/shard/looking.py",
        "            if call.rests_on is not None:\n",
        "            if False:\n",
        tests("tests/rules/test_looking.py"),
        "O-3",
        more=(("            self._reads.require_owner()  # O-4:", "            pass  # O-4:"),),
    ),
    Mutant(
        "a fenced owner tells of what it skipped",
        "src/weir/shard/looking.py",
        "            self._reads.require_owner()  # O-4: a successor may have decided otherwise\n",
        "            pass\n",
        tests("tests/rules/test_looking.py"),
        "O-4",
    ),
    Mutant(
        "an insert that skips counts what it skipped as new",
        "src/weir/shard/decide.py",
        "            skipped=rows_given - count,\n",
        "            skipped=0,\n",
        tests("tests/rules/test_looking.py"),
        "O-5",
    ),
    Mutant(
        "an expired row is dropped instead of hiding the older ones",
        "src/weir/upkeep/compact/tasks.py",
        "(alive.bury(batch) for batch in newest)",
        "(alive.keep(batch) for batch in newest)",
        tests("tests/rules/test_expiry.py"),
        "L-11",
    ),
    Mutant(
        "compaction drops by the clock of its machine",
        "src/weir/upkeep/expire.py",
        "core.store.now()",
        "core.env.clock.wall()",
        tests("tests/rules/test_expiry.py"),
        "L-11",
    ),
    Mutant(
        "a checkpoint hides what expired since",
        "src/weir/read/snapshot.py",
        "ordered, pinned.created, is_pinned=True)",
        "ordered, core.env.clock.wall(), is_pinned=True)",
        tests("tests/rules/test_expiry.py"),
        "L-11",
    ),
    Mutant(
        "a rival of LanceDB's name is not looked for",
        "src/weir/routing/guard.py",
        "    if core.record.primary_key and named not in (None, shard, *known):\n",
        "    if False:\n",
        tests("tests/rules/test_shared_tables.py"),
        "X-3",
    ),
    Mutant(
        "one of two rivals is folded",
        "src/weir/upkeep/compact/plan.py",
        "for shard in (r.shard, r.routed)}",
        "for shard in (r.shard,)}",
        tests("tests/rules/test_shared_tables.py"),
        "X-3",
    ),
    Mutant(
        "an adopted shard is always the newer one",
        "src/weir/upkeep/adopt_shard.py",
        '                if order == "older":\n',
        "                if False:\n",
        tests("tests/rules/test_shared_tables.py"),
        "X-3",
    ),
    Mutant(
        "SSTables leave the manifests as soon as they are folded",
        "src/weir/upkeep/gc/shard.py",
        "        if job.ages.min_age:\n",
        "        if False:\n",
        tests("tests/rules/test_shared_tables.py"),
        "X-4",
    ),
    Mutant(
        "a restored base releases what an older one held",
        "src/weir/upkeep/gc/visit.py",
        "released_generation(self.latest, shard), ",
        "1 << 62, ",
        tests("tests/rules/test_shared_tables.py"),
        "X-4",
    ),
    Mutant(
        "the flag that Lance 13 dropped stays dropped",
        "src/weir/routing/natives.py",
        "        maintain_all=every,\n",
        "        maintain_all=details.maintain_all,\n",
        tests("tests/rules/test_shared_tables.py"),
        "X-5",
    ),
    Mutant(
        "an upgrade that counts rows and no keys",
        "src/weir/upkeep/upgrade.py",
        "        if key and batch.num_rows:\n",
        "        if False:\n",
        tests("tests/rules/test_upgrade.py"),
        "X-7",
    ),
    Mutant(
        "an upgrade that stamps over what was written meanwhile",
        "src/weir/upkeep/upgrade.py",
        "    if find_waiting(core, fold_wal=True)[1]:\n        _fold(core, None)\n",
        "    return\n",
        tests("tests/rules/test_upgrade.py"),
        "X-7",
    ),
    Mutant(
        "an upgrade beside a writer at work",
        "src/weir/upkeep/upgrade.py",
        "        if age is not None and age < quiet:\n",
        "        if False:\n",
        tests("tests/rules/test_upgrade.py"),
        "X-7",
    ),
    Mutant(
        "a shard that is opened by itself leaves LanceDB in",
        "src/weir/table.py",
        "        core.before_writing = before_writing\n",
        "",
        tests("tests/regress/test_tables_of_0_1_0.py"),
        "X-1",
    ),
    Mutant(
        "flags of a later Lance are passed over",
        "src/weir/format/base_manifest.py",
        "    _require_flags(message)\n",
        "",
        tests("tests/rules/test_pending_bytes.py"),
        "X-9",
    ),
    Mutant(
        "fields of a later shard manifest are passed over",
        "src/weir/format/protobuf.py",
        "    if unknown:\n",
        "    if False:\n",
        tests("tests/rules/test_pending_bytes.py"),
        "X-9",
    ),
    Mutant(
        "a pylance that nobody tried",
        "src/weir/routing/opening.py",
        "        require_supported()\n",
        "",
        tests("tests/unit/lake/test_supported.py"),
        "X-8",
    ),
    Mutant(
        "a doctor that passes over rows in another value's shard",
        "src/weir/upkeep/health.py",
        "        lambda: _misrouted(core, manifests),\n",
        "",
        tests("tests/unit/upkeep/test_health.py"),
        "X-6",
    ),
)

ACTORS = {
    "a tailer does not hear of a move": soak(600, "feeds"),
    "entries of before a move are looked for beside the data": soak(600, "feeds"),
    "a replacing load that is no job": soak(600, "loads"),
    "older rows stay above a load": soak(600, "loads"),
    "a boot clock that stands still vouches for a proof": soak(1000, "clocks"),
    "a put that was repeated is as young as any": soak(2000, "clocks"),
    "entries of a WAL store are aged by the table's clock": soak(1000, "clocks"),
    "a log is empty once R has passed its mark": soak(1000, "unmounts"),
    "a lost log is needed though nothing is missing": soak(200, "unmounts"),
    "what is not found on an unmounted disk is not there": soak(400, "unmounts"),
    "rows go into the hole where a disk was": soak(1000, "unmounts"),
    "a fence goes into the hole where a disk was": soak(1000, "unmounts"),
    "any disk with an id will do": soak(1000, "unmounts"),
    "a disk that is back proves what was looked for in its hole": soak(1000, "unmounts"),
    "a glance takes the id of a disk that is back": soak(1000, "unmounts"),
    "only the decoder knows how large an entry may be": soak(1000, "limits"),
    "a tail is cut by the number of its entries alone": soak(1000, "limits"),
    "a round of gets takes whatever it finds": soak(1000, "limits"),
    "a MemTable outgrows the bounds of its generation": soak(1000, "limits"),
    "a writer's own settings outgrow the table's": soak(1000, "limits"),
    "a forked child goes on with its parent's handle": soak(200, "twins"),
    "a wrong WAL store is refused after the claim": soak(200, "unmounts"),
    "the place of another table is a WAL store": soak(200, "unmounts"),
    "a clone takes the WAL store of its parent": soak(1000, "unmounts"),
    "a checkpoint whose disk is gone is called collected": soak(200, "unmounts"),
    "a clone that is not there was deleted": soak(200, "unseen clones"),
}
"""Bugs that a test finds, and an actor of the simulator must find too."""
MUTANTS += tuple(
    replace(mutant, name=f"{mutant.name} (simulated)", catch=ACTORS[mutant.name])
    for mutant in MUTANTS
    if mutant.name in ACTORS
)


def copy_tree(target: Path) -> None:
    """What tests need, without version control and environments."""
    for name in ("src", "tests", "simulator", "tools", "docs"):
        if (ROOT / name).exists():
            ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / name, target / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", target / "pyproject.toml")


def patched(text: str, mutant: Mutant) -> str:
    """The file with the bug; `ValueError` when the patch does not fit."""
    for old, new in ((mutant.old, mutant.new), *mutant.more):
        found = text.count(old)
        if found != 1:
            raise ValueError(f"the patch fits {found} times")
        text = text.replace(old, new)
    return text


def misfit(tree: Path, mutant: Mutant) -> str | None:
    """What is wrong with the patch, or None."""
    try:
        patched((tree / mutant.file).read_text(encoding="utf-8"), mutant)
    except (OSError, ValueError) as error:
        return str(error)
    return None


def plant(tree: Path, mutant: Mutant) -> str | None:
    """Apply the bug; what is wrong with the patch, or None."""
    stale = misfit(tree, mutant)
    if stale is None:
        path = tree / mutant.file
        path.write_text(patched(path.read_text(encoding="utf-8"), mutant), encoding="utf-8")
    return stale


def judge(mutant: Mutant) -> tuple[str, float, str]:
    """(caught, survived or stale), seconds, and the line that says how."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="weir-mutant-") as folder:
        tree = Path(folder)
        copy_tree(tree)
        stale = plant(tree, mutant)
        if stale:
            return "stale", 0.0, stale
        env = {**os.environ, "PYTHONPATH": str(tree / "src"), "COLUMNS": "200"}
        try:
            done = subprocess.run(
                [sys.executable, *mutant.catch],
                cwd=tree,
                env=env,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            # Nothing was found in that time, and a slow machine is no proof: a survivor.
            return "survived", time.perf_counter() - began, f"not found in {TIMEOUT_SECONDS} s"
    seconds = time.perf_counter() - began
    if done.returncode == 0:
        return "survived", seconds, ""
    if done.returncode != 1 or "No module named" in done.stderr:
        # pytest: nothing was collected; python: the module is not there. That finds no bug.
        return "stale", seconds, f"could not be run: {evidence(done.stdout or done.stderr)}"
    return "caught", seconds, evidence(done.stdout)


def baseline() -> str | None:
    """What fails without any bug planted, or None."""
    done = subprocess.run(
        [sys.executable, *soak(400)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return evidence(done.stdout) if done.returncode else None


def evidence(output: str) -> str:
    """The line of the output that names what was found."""
    for line in output.splitlines():
        if line.strip().startswith("make sim SEED="):
            return line.strip().removeprefix("make sim ")[:110]
    for line in output.splitlines():
        if line.startswith(("FAILED tests/", "ERROR tests/")):
            return line.partition(" - ")[0].partition(" ")[2].strip()[:110]
    return (output.strip().splitlines() or [""])[-1][:110]


def main() -> int:
    """Run the mutants asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names, or parts of them")
    parser.add_argument("--list", action="store_true", help="name the mutants and stop")
    parser.add_argument("--check", action="store_true", help="only look whether each patch fits")
    parser.add_argument("--docs", type=Path, help="write the table here")
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if not args.only or any(part in m.name for part in args.only)]
    if args.list:
        print("\n".join(f"{m.rule:5} {m.name}" for m in chosen))
        return 0
    if args.check:
        stale = [(m.name, problem) for m in chosen if (problem := misfit(ROOT, m))]
        print("\n".join(f"stale: {name}: {problem}" for name, problem in stale) or "all fit")
        return 1 if stale else 0
    broken = baseline()
    if broken:
        print(f"the tree itself fails, so nothing can be learned: {broken}")
        return 1
    rows = []
    for mutant in chosen:
        verdict, seconds, how = judge(mutant)
        rows.append((mutant, verdict, seconds, how))
        print(f"{verdict:9} {seconds:6.1f} s  {mutant.rule:5} {mutant.name}: {how}", flush=True)
    lost = [row for row in rows if row[1] != "caught"]
    print(f"{len(rows) - len(lost)} of {len(rows)} deliberate bugs were caught")
    if args.docs:
        args.docs.write_text(table(rows), encoding="utf-8")
    return 1 if lost else 0


def table(rows: list[tuple[Mutant, str, float, str]]) -> str:
    """The table for the documentation."""
    lines = ["| planted bug | rule | in | found by |", "| --- | --- | --- | --- |"]
    for mutant, verdict, _, how in rows:
        place = mutant.file.removeprefix("src/weir/")
        found = _found_by(how) if verdict == "caught" else verdict
        lines.append(f"| {mutant.name} | {mutant.rule} | `{place}` | {found} |")
    return "\n".join(lines) + "\n"


def _found_by(how: str) -> str:
    """The seed, or the test, without what it said."""
    seed = re.match(r"SEED=(\d+)\s+(\w)", how)
    if seed:
        return f"the simulator, seed {seed[1]} ({seed[2]})"
    test = re.match(r"(tests/[\w/]+\.py)(?:::(\w+))?", how)
    return f"`{test[1].rpartition('/')[2]}`" if test else "a test that ends in an error"


if __name__ == "__main__":
    sys.exit(main())
