"""Tables: routing, snapshots, merged reads, the change feed."""
