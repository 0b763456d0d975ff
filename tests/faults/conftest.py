# SPDX-License-Identifier: Apache-2.0
"""Lets the tests of this folder import their own modules, those of the contract and `launch`."""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

_HERE = Path(__file__).parent
for folder in (_HERE, _HERE.parent / "contract", _HERE.parent / "distributed"):
    sys.path.insert(0, str(folder))  # pytest imports by file
