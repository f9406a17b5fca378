"""Engines that answer prompts: vLLM in this process."""
