"""The process of one side: set up, run a round for each line received, report peak memory."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import traceback
from pathlib import Path

import psutil

from benchmarks.harness import Ctx


def main() -> None:
    """Speak JSON lines; the output of libraries goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**message: object) -> None:
        print(json.dumps(message), file=answers, flush=True)

    try:
        asked = json.loads(sys.stdin.readline())
        name = asked.pop("workload")
        ctx = Ctx(**asked)
        # pylance's lookup planner opens SSTables without the options it was given.
        os.environ.update({key.upper(): value for key, value in ctx.options.items()})
        os.environ["AWS_ALLOW_HTTP"] = "true"
        from benchmarks.workloads import WORKLOADS

        workload = WORKLOADS[name]
        if ctx.side == "prepare":
            assert workload.prepare is not None
            answer(data=workload.prepare(ctx))
            _leave()
        with workload.sides[ctx.side](ctx) as run:
            answer(ready=True)
            while line := sys.stdin.readline():
                if json.loads(line) == "close":
                    break
                answer(value=run())
            peak = peak_mib()
        answer(peak_mib=peak)
    except Exception as error:  # noqa: BLE001  whatever a peer raises is a result
        traceback.print_exc()
        answer(error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    _leave()


def peak_mib() -> float:
    """Peak memory of this process; with Spark, that of the largest worker that ran tasks."""
    tasks = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has exited
            if "pyspark" in " ".join(child.cmdline()) and "java" not in child.name():
                tasks.append(child.pid)
    return max(_high_water_mib(pid) for pid in tasks or [os.getpid()])


def _high_water_mib(pid: int) -> float:
    """From /proc: ru_maxrss starts at the value of the parent process."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def _leave() -> None:
    # Native runtimes of the peers may hang or abort when the interpreter shuts down.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
