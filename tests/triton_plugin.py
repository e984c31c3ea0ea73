"""Chooses Triton's interpreter for the whole run where there is no GPU.

Triton reads the choice when it is first imported, and several libraries import it, so one test
folder alone cannot choose. Loaded before anything that could import torch.
"""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
