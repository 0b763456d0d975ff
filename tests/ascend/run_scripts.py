# SPDX-License-Identifier: Apache-2.0
"""Runs scripts one after the other, and prints what each left in `RESULT`.

Started by `python -m npu_keras.ascend`, so that one process serves many scripts.
"""

import json
import runpy
import sys
import warnings
from pathlib import Path

import tensorflow as tf

from npu_keras import NPURunConfig, buckets

HERE = Path(__file__).parent / "scripts"


def run(name, in_graph):
    if not in_graph:
        return runpy.run_path(str(HERE / f"{name}.py"))["RESULT"]
    with tf.Graph().as_default():
        return runpy.run_path(str(HERE / f"{name}.py"))["RESULT"]


def main(names):
    """Runs scripts, those after `--` in graphs."""
    warnings.simplefilter("ignore")
    in_graph = False
    for name in names:
        if name == "--":
            in_graph = True
            tf.compat.v1.disable_eager_execution()
            continue
        buckets.clear_split_strategy()
        NPURunConfig.clear()
        tf.keras.backend.clear_session()
        try:
            result = run(name, in_graph)
        except Exception as error:  # a rank alone would keep the others waiting
            result = f"{type(error).__name__}: {error}"
        print("RESULT", json.dumps([name, result]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
