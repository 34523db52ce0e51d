"""`metrics`: the page of this process for Prometheus."""

from __future__ import annotations

from weir.env import SYSTEM, Env, takes_env


@takes_env
def metrics(*, env: Env = SYSTEM) -> str:
    """What this process has measured, in the text format of Prometheus (version 0.0.4).

    The first call turns measuring on, so make it when the process starts; until then nothing is
    counted and nothing spent. No request, no dependency. Serve it under `/metrics` as
    `text/plain; version=0.0.4`. docs/reference/metrics.md lists the metrics.
    """
    env.meters.turn_on()
    return env.meters.page()
