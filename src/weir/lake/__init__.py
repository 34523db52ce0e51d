"""Lance as weir uses it: SSTables, the base table, its commits."""

from weir.env import default_variable

# Lance reads this when it is first imported, which only this package does. It reports each commit
# on a table with a MemWAL entry as an error of an index "without fields", which that entry is.
default_variable("LANCE_LOG", "warn,lance::index=off")
