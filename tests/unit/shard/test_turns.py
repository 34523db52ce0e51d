"""Group commit fills its entries although threads tend to keep the interpreter."""

from simulator.env import make_actor
from simulator.scheduler import Scheduler, Settings
from tests.support.one_shard import open_writer, site_on
from weir.env import SYSTEM
from weir.shard.ack import Ack
from weir.shard.turns import (
    PACE_ENTRIES,
    QUICK_SECONDS,
    REST_ENTRIES,
    SLOW_ENTRIES,
    Pace,
    Turns,
    WaiterGroup,
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
    """Each seed is another schedule; 4.4 to 7.1 puts an entry, and 1.1 to 1.3 without the turns."""
    puts_per_entry = [THREADS * PUTS / entries_written(seed) for seed in range(5)]
    assert min(puts_per_entry) > 3, puts_per_entry


class Queue:
    """What a crowd sees of a shard that has puts waiting."""

    leading, leader, queued_bytes, waiting = False, None, 100, 1


def gates(count):
    """Make `count` puts, with a waiter at the gate of each."""
    turns = Turns(WaiterGroup(SYSTEM.threads), Queue())
    acks = [Ack(None, (), rows=1, nbytes=1) for _ in range(count)]
    return turns, acks, [turns.gate_for(ack) for ack in acks]


def opened(gates):
    return [not gate.locked() for gate in gates]


def test_waiters_are_woken_one_by_one_and_each_wakes_the_next():
    turns, acks, gate = gates(3)
    for ack in acks:
        turns.wake(ack)
    assert opened(gate) == [True, False, False]
    for number, ack in enumerate(acks):
        assert not turns.has_no_wakeups
        assert turns.arrived(ack)
        assert opened(gate) == [place <= number + 1 for place in range(3)]
    assert turns.has_no_wakeups


def test_a_turn_that_somebody_else_took_leaves_nobody_asleep():
    """`flush_wal` waits for a durable put whose putter has not had its turn yet."""
    turns, acks, gate = gates(3)
    for ack in acks:
        turns.wake(ack)
    assert turns.arrived(acks[1])
    assert opened(gate) == [True, True, True]
    assert turns.arrived(acks[0])
    assert not turns.arrived(acks[1])
    assert turns.arrived(acks[2])
    assert turns.has_no_wakeups


def test_a_waiter_that_gives_up_hands_its_turn_on():
    for quitter in range(3):
        turns, acks, gate = gates(3)
        for ack in acks:
            turns.wake(ack)
        turns.leave(acks[quitter])
        for number in {0, 1, 2} - {quitter}:
            assert opened(gate)[number]
            assert turns.arrived(acks[number])
        assert turns.has_no_wakeups


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
