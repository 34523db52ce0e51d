"""Vector and text search over all levels: candidates from each level, merged into one ranking."""

import weir.lake  # noqa: F401  it sets what Lance reads when it is first imported
