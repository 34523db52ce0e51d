"""Helpers of the suite that are no tests themselves."""
