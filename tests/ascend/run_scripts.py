# SPDX-License-Identifier: Apache-2.0
"""Runs scripts one after the other, and prints what each left in `RESULT`.

Started by `python -m npu_keras.ascend`, so that one process serves many scripts.
"""

import json
import runpy
import sys
import time
import warnings
from pathlib import Path

import tensorflow as tf

from npu_keras import NPURunConfig, buckets

HERE = Path(__file__).parent / "scripts"


def main(mode, names):
    warnings.simplefilter("ignore")
    if mode == "graph":
        tf.compat.v1.disable_eager_execution()
    for name in names:
        buckets.clear_split_strategy()
        NPURunConfig.clear()
        tf.keras.backend.clear_session()
        begin = time.process_time()
        try:
            if mode == "graph":
                with tf.Graph().as_default():
                    result = runpy.run_path(str(HERE / f"{name}.py"))["RESULT"]
            else:
                result = runpy.run_path(str(HERE / f"{name}.py"))["RESULT"]
        except Exception as error:  # a rank alone would keep the others waiting
            result = f"{type(error).__name__}: {error}"
        print("RESULT", json.dumps([name, result]), round(time.process_time() - begin, 1), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
