"""A consumer: counts the visits of each page, every event exactly once, also if it is killed.

    python consume.py EVENTS PAGES [once]

Counts and bookmark are one transaction of SQLite; the counts also go to a table that others read.
"""

import sqlite3
import sys

import weir


def main(events_uri: str, pages_uri: str, *, once: bool) -> None:
    db = sqlite3.connect("visits.db", isolation_level=None)
    db.execute("CREATE TABLE IF NOT EXISTS visits (page TEXT PRIMARY KEY, n INTEGER)")
    db.execute("CREATE TABLE IF NOT EXISTS place (one INTEGER PRIMARY KEY, bookmark TEXT)")
    saved = db.execute("SELECT bookmark FROM place").fetchone()
    if saved and weir.Bookmark.from_json(saved[0]).snapshot:
        db.execute("DELETE FROM visits")  # killed among the first rows: all of these come again
    events = weir.open(events_uri)
    # Collection keeps what "visits" has not read, however long it does not run (up to 7 days).
    feed = events.follow("visits", since=saved[0] if saved else None, once=once)
    with weir.open(pages_uri).writer() as pages:
        for change in feed:
            db.execute("BEGIN")
            for row in change.batch.to_pylist():
                db.execute(
                    "INSERT INTO visits VALUES (?, 1) ON CONFLICT (page) DO UPDATE SET n = n + 1",
                    [row["page"]],
                )
            place = change.bookmark.to_json()
            db.execute("INSERT OR REPLACE INTO place VALUES (1, ?)", [place])
            db.execute("COMMIT")
            named = {row["page"] for row in change.batch.to_pylist()}
            counts = dict(db.execute("SELECT page, n FROM visits").fetchall())
            rows = [{"page": page, "visits": counts[page]} for page in named]
            pages.put(rows, when="current.page IS NULL OR incoming.visits > current.visits")
            print(sum(counts.values()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], once=sys.argv[3:] == ["once"])
