# SPDX-License-Identifier: Apache-2.0
"""Entry point of `python -m npu_keras`."""

import sys

from npu_keras.cli import main

if __name__ == "__main__":
    sys.exit(main())
