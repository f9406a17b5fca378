"""What holds for all tests."""

from __future__ import annotations

import os

# As in the pipeline's own processes (`pipeline.hardware.environment`). It must be there before any test module imports
# torch: vLLM's CPU attention fails when the thread that steps has another number of threads than the one that built it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
