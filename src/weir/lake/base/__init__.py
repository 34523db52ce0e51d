"""The base table: reads, folds and versions."""
