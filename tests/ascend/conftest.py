# SPDX-License-Identifier: Apache-2.0
"""The tests of scripts for Ascend, of its products and of saturating arithmetic."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# For `launch` and `running`; pytest imports by file.
sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
sys.path.insert(0, str(Path(__file__).parent))
