"""Lance as weir uses it: SSTables, the base table, its commits."""

from weir.env import default_variable

# Lance reads this when it is first imported, which only this package does. For each commit on a
# table with a MemWAL index entry it logs an error about an index "without fields": that entry.
default_variable("LANCE_LOG", "warn,lance::index=off")
