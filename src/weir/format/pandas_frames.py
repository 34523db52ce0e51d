"""What pandas has beside Arrow: an index. A frame gives the same columns to a table and to rows."""

from __future__ import annotations

from typing import Any


def is_pandas(data: object, name: str) -> bool:
    """True for an object of that class of pandas, or of one derived from it."""
    return any(
        cls.__name__ == name and cls.__module__.partition(".")[0] == "pandas"
        for cls in type(data).__mro__
    )


def with_index(frame: Any) -> Any:
    """The frame with its named index as columns, and without an index that has no name.

    On its way to Arrow a frame loses an index of consecutive numbers, and keeps any other: which
    one it has is decided by the values, not by what the program says.
    """
    index = frame.index
    if index.name is None and type(index).__name__ == "RangeIndex":
        return frame
    columns = set(map(str, frame.columns))
    levels = {
        str(name): index.get_level_values(level)
        for level, name in enumerate(index.names)
        if name is not None and str(name) not in columns
    }
    return frame.assign(**levels).reset_index(drop=True)
