"""One shard's log and manifest: claim, fence, append, tail. Knows nothing of MemTables."""
