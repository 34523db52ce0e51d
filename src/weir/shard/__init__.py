"""One shard: its writer, MemTable, flush, replay, and the merge of its levels."""
