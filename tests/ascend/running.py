# SPDX-License-Identifier: Apache-2.0
"""Processes in which scripts run, alone and on two ranks, and what they print."""

import json
import os
import subprocess
import sys

SIZES = (1, 2)


def start(size, output, arguments):
    """Starts `python -m npu_keras.ascend` with arguments, alone or on two ranks."""
    ranks = [*("npu_keras", "run", "-n", "2", "--timeout", "370", "-m")] if size == 2 else []
    command = [sys.executable, "-m", *ranks, "npu_keras.ascend", *arguments]
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command, stdout=output, stderr=output, env=env)


def wait(running, files):
    """Waits for processes, and returns what they wrote."""
    try:
        for process in running:
            process.wait(timeout=380)
    finally:
        for process in running:
            process.terminate()
            process.wait(timeout=30)
    for file in files.values():
        file.seek(0)
    return {size: file.read().decode(errors="replace") for size, file in files.items()}


def read(text, size):
    """What each rank left in `RESULT`, by script."""
    results = {}
    for line in text.splitlines():
        rank, found, report = line.partition("RESULT ")
        if found:
            name, result = json.JSONDecoder().raw_decode(report)[0]
            results.setdefault(name, {})[rank.strip()] = result
    return {n: list(by_rank.values()) for n, by_rank in results.items() if len(by_rank) == size}
