"""One SSTable: written once, read often."""
