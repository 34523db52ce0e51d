"""A pytest plugin for the matrix: lets weir run on a pylance outside the supported range."""

from weir.lake import supported

supported.RANGE = ((0, 0), (1000, 0))
