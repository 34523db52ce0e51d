"""Times that upkeep takes when a call, an option or a policy names no other."""

from __future__ import annotations

from typing import Final

LEASE: Final = "1m"
"""How long a claim that is not renewed keeps others away; then its owner is fenced and replaced. A
killed compaction leaves the table alone for so long, and what waits meanwhile is debt (L-4)."""
MIN_AGE: Final = "15m"
"""A collection keeps younger objects, for readers without a checkpoint."""
FENCE_RETENTION: Final = "7d"
"""A collection keeps the first entry of an epoch this long, for native writers that sleep."""
UNDO_TTL: Final = "7d"
"""How long the checkpoint is kept that leads back to before a restore or a reshard."""
