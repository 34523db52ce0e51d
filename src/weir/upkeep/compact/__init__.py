"""Compaction: plan, tasks, commit, and what follows the commit."""
