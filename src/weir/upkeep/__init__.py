"""Upkeep of a table: checkpoint, clone, compact, collect, restore, reshard."""
