"""What weir keeps under `_weir/`: chains of records, marks that only rise, one codec each."""
