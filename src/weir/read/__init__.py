"""Reads of a whole table: snapshots, scans, lookups, searches, the change feed, statistics."""
