"""Lance as weir uses it: SSTables, the base table, its commits."""
