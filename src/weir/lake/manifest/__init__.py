"""Lance manifests that weir writes or reads itself."""
