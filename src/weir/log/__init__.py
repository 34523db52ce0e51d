"""One shard's log and manifest: claiming, fencing, appending, tailing. Knows nothing of
MemTables."""
