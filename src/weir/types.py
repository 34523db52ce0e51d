"""The integers of the protocol, each its own type so that two of them cannot be swapped unseen."""

from __future__ import annotations

from typing import NewType

Epoch = NewType("Epoch", int)
"""Who: the fencing token in the shard manifest, one higher at every claim of the shard."""

Position = NewType("Position", int)
"""Where in the log: 1 is the first entry, 0 means 'nothing yet'."""

Generation = NewType("Generation", int)
"""Which SSTable: the number a flushed MemTable gets; starts at 1."""

Version = NewType("Version", int)
"""Which manifest of a shard: the number in its file name; starts at 1."""
