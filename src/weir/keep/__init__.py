"""`weir keep`: looks after every table below some prefixes, as `weir.due` says."""
