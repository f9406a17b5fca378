"""The small Qwen3-Omni that comes with the project: the real architecture at a few million parameters."""
