"""Whether the disk that holds a log is still where it was met (S-7)."""

from __future__ import annotations

from weir.format import paths
from weir.log.site import ShardSite
from weir.log.stamp import check_identity
from weir.store.api import Meta


class Presence:
    """`check_identity` for each entry on a local disk, at the price of one stat.

    The file that holds the id is read again when it is not the one seen last: another disk in the
    same place may bear an id too.
    """

    def __init__(self, site: ShardSite) -> None:
        self._site = site
        self._seen: Meta | None = None

    def check(self) -> None:
        """`WalStoreMismatch` unless the site's log is where it was met."""
        found = self._site.wal.head(paths.store_id_path(self._site.shard))
        if found is None or found != self._seen:
            check_identity(self._site)
            self._seen = found
