"""Vector and text search over all levels: candidates of each level, one ranking."""

import weir.lake  # noqa: F401  it sets what Lance reads when it is first imported
