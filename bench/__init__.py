"""Side-by-side measurements: each `python -m bench.NAME` prints a table for people, then one JSON line."""
