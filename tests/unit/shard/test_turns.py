"""Group commit fills its entries although threads tend to keep the interpreter."""

from simulator.env import make_actor
from simulator.scheduler import Scheduler, Settings
from tests.support.one_shard import open_writer, site_on
from weir.shard.turns import (
    PACE_ENTRIES,
    QUICK_SECONDS,
    REST_ENTRIES,
    SLOW_ENTRIES,
    Pace,
)
from weir.store.memory import MemoryStore

THREADS, PUTS = 8, 25


def entries_written(seed):
    """Count the entries of eight threads that put row after row, on a store without latency."""
    # The running thread continues at nine of ten switching points, as with Python's interval.
    scheduler = Scheduler(seed, Settings(stay=0.9, lock_yield=0.3))
    actor = make_actor(scheduler, "writer", str(seed))
    found = []

    def put_all():
        writer = open_writer(site_on(MemoryStore(), env=actor.env))

        def put_some(first):
            for number in range(first, first + PUTS):
                writer.put([{"k": number, "v": number}])

        threads = [
            actor.env.threads.start(lambda first=i * PUTS: put_some(first), name=f"putter{i}")
            for i in range(THREADS)
        ]
        for thread in threads:
            thread.join()
        found.append(writer.stats())
        writer.close()

    scheduler.spawn(actor, put_all, name="main")
    scheduler.run()
    assert found[0].puts == THREADS * PUTS
    return found[0].wal.entries


def test_woken_threads_put_again_before_the_next_entry_is_written():
    """Each seed is another schedule; 3.0 to 5.0 puts an entry, and 1.1 to 1.3 without gathering."""
    puts_per_entry = [THREADS * PUTS / entries_written(seed) for seed in range(5)]
    assert min(puts_per_entry) > 2, puts_per_entry


def after(pace, *entries):
    """Whether the store counts as quick after these (entries, seconds each), in order."""
    for count, seconds in entries:
        for _ in range(count):
            pace.record_latency(seconds)
    return pace.is_quick


def test_a_store_that_takes_its_time_is_known_after_a_few_entries():
    assert after(Pace(), (SLOW_ENTRIES - 1, 0.01))
    assert not after(Pace(), (SLOW_ENTRIES, 0.01))
    assert not after(Pace(), (SLOW_ENTRIES, 0.01), (10 * REST_ENTRIES, 0.01))


def test_one_quick_entry_of_several_tells_and_others_only_waited_for_a_processor():
    quick, held_up = QUICK_SECONDS / 2, 5 * QUICK_SECONDS
    assert after(Pace(), (1, quick), (PACE_ENTRIES - 1, held_up))
    assert not after(Pace(), (1, quick), (2 * PACE_ENTRIES - 1, held_up))


def test_a_store_that_is_nearly_quick_is_tried_again_after_a_rest():
    nearly = 2 * QUICK_SECONDS
    pace = Pace()
    assert not after(pace, (PACE_ENTRIES, nearly))
    assert not after(pace, (REST_ENTRIES - 1, nearly))
    assert after(pace, (1, nearly))
    assert not after(pace, (PACE_ENTRIES, nearly))
    assert after(pace, (REST_ENTRIES, nearly), (PACE_ENTRIES, QUICK_SECONDS / 2))


def test_a_store_that_hung_is_tried_again_soon():
    pace = Pace()
    pace.forget()
    assert not after(pace, (PACE_ENTRIES - 1, QUICK_SECONDS))
    assert after(pace, (1, QUICK_SECONDS))
