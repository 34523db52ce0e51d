"""Levels of rows, newest first, and their merge: the newest row of a key wins."""
