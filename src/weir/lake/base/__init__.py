"""The base table: read, folded into, its versions."""
