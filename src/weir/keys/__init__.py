"""Sets of keys: which keys of a batch are new, which row of a key is the newest."""
