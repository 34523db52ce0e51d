"""Random histories of every verb on real Lance, against dictionaries; see `__main__`."""

import weir.lake  # noqa: F401  silences Lance's log, which reads its level when it is imported
