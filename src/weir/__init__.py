"""weir."""
