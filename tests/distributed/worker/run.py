# SPDX-License-Identifier: Apache-2.0
"""The script that each rank runs: the checks of the modules named first, then names of checks."""

import importlib
import sys

import harness

for module in sys.argv.pop(1).split(","):
    importlib.import_module(module)
harness.run()
