"""Objects of unknown size, fetched concurrently, in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence

from weir.store.api import Store


def get_some(store: Store, paths: Sequence[str], max_bytes: int) -> list[bytes | None]:
    """The first of these objects, at least one and as many as fit; None for a missing one (L-10).

    One get each for objects of about equal size. An object much larger than its share is at first
    read only in part; it costs a head and a second get, and ends the list if it does not fit. Holds
    at most three times `max_bytes`, plus the first object if that is larger.
    """
    share = max(1, 2 * max_bytes // len(paths))
    found = store.get_many(paths, first=share)
    cut = [i for i, body in enumerate(found) if body is not None and len(body) >= share]
    if not cut:
        return found
    whole: list[int] = []
    room = max_bytes
    for i, meta in zip(cut, store.head_many([paths[i] for i in cut]), strict=True):
        size = 0 if meta is None else meta.size
        if i > 0 and size > room:
            del found[i:]
            break
        room -= size
        whole.append(i)
    for i, body in zip(whole, store.get_many([paths[i] for i in whole]), strict=True):
        found[i] = body
    return found
