"""Real signals: one thread calls verb after verb and is interrupted at random, as by Ctrl-C.

What `trial.py` does at chosen points happens here wherever the interpreter really delivers: also
inside native calls and with other threads at any point. The seed chooses the verbs and the pauses;
where a signal lands is up to the machine.
"""

import random
import signal
import time
from types import FrameType
from typing import Any

from tests.interrupts.cases import OLD, Batch, Case
from tests.interrupts.points import WEIR
from tests.interrupts.trial import Ledger, Putter, judge_log

SIGNALS_PER_WRITER = 20
LONGEST_PAUSE = 0.004


def interrupt_weir(_number: int, frame: FrameType | None) -> None:
    """Raise in weir only: an interrupt of the test itself would tell nothing."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(WEIR):
            raise KeyboardInterrupt
        frame = frame.f_back


class Storm:
    """Writers of one case, one after the other, each interrupted some times and then closed."""

    def __init__(self, case: Case, folder: str, seed: int) -> None:
        self._case = case
        self._table = case.create(f"{folder}/signals-{case.name}-{seed}")
        self._random = random.Random(f"{case.name} {seed}")
        self._keys = iter(range(0, 1 << 50, 1_000_000))  # putters take up to 3 for each put
        self.signals = 0

    def run(self, seconds: float) -> tuple[str, str]:
        """The outcome after so many seconds, as in `trial.py`, and its details."""
        end = time.monotonic() + seconds
        before = signal.signal(signal.SIGALRM, interrupt_weir)
        try:
            while time.monotonic() < end:
                outcome, detail = self._writer()
                if outcome != "ok":
                    return outcome, detail
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return "ok", f"{self.signals} signals"

    def _writer(self) -> tuple[str, str]:
        ledger = Ledger()
        since = self._table.changes()
        for _ in since:
            pass
        writer = self._case.writer(self._table)
        batch = Batch("putter", next(self._keys))
        putters = [Putter(writer, n, batch, ledger) for n in range(1, 1 + 2 * self._case.beside)]
        for putter in putters:
            putter.start()
        struck = 0
        while struck < SIGNALS_PER_WRITER and not ledger.failures:
            struck += self._call(writer, ledger)
        self.signals += struck
        for putter in putters:
            putter.stopping.set()
            putter.join()
        ledger.call(writer.close)
        return judge_log(self._table, since.bookmark, ledger)

    def _call(self, writer: Any, ledger: Ledger) -> bool:
        """One call under a timer; True when a signal struck it."""
        verb, batch = self._case.verb, Batch("signals", next(self._keys))
        if verb.writes == OLD:  # an update of keys that are not there would only be refused
            ledger.put(writer, batch.rows(OLD, "old"))
        is_struck = False
        signal.setitimer(signal.ITIMER_REAL, self._random.uniform(1e-5, LONGEST_PAUSE))
        try:
            verb.call(writer, batch)
        except KeyboardInterrupt:
            is_struck = True
        except Exception as error:
            ledger.failed(error)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if verb.once:
            values = [row["v"] for row in batch.rows(verb.writes)]
            ledger.send_again(lambda: verb.call(writer, batch), values)
        return is_struck
