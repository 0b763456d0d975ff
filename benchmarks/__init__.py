# SPDX-License-Identifier: Apache-2.0
"""What npu_keras costs, as ratios measured side by side in one run: `python -m benchmarks`."""
