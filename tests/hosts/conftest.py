# SPDX-License-Identifier: Apache-2.0
"""Lets the tests of this folder import `two_hosts` and `launch`; pytest imports them by file."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent, Path(__file__).parents[1] / "distributed"):
    sys.path.insert(0, str(folder))
