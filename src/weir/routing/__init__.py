"""An open table: its record, its shards, and the writer that routes rows to them."""
