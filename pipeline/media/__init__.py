"""From a file to arrays: what it is (probe), how much to look at (plan), the sound and pictures (decode)."""
