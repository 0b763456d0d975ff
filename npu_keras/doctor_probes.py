# SPDX-License-Identifier: Apache-2.0
"""Looks at an installation, and tries what it can."""

import functools
import importlib.metadata
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from npu_keras import launch_plan
from npu_keras._version import __version__
from npu_keras.words import name_text

_ROWS, _UNITS, _STEPS = 32, 64, 5
_MPI_TIMEOUT_S = 30.0
# In a process of its own: a library that does not fit may end it. MPI is not started.
_MPI_VERSION = """
import ctypes, sys
import mpi4py
mpi4py.rc.initialize = mpi4py.rc.finalize = False
for path in sys.argv[1:]:
    try:
        ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        break
    except OSError:
        pass
from mpi4py import MPI
print(MPI.Get_library_version())
"""


class Finding(NamedTuple):
    """A line of the output.

    Attributes:
        name: what was looked at.
        text: what was found.
        usable: whether it is enough, of its kind, to train a model.
    """

    name: str
    text: str
    usable: bool = True


def one_line(error: Exception) -> str:
    """Returns an error on one line, without the user's home folder.

    Args:
        error: what was raised.
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"
    return name_text(_without_home(text), longest=400)


def version(module: str) -> Finding:
    """Returns the version of the distribution that a module comes from.

    Args:
        module: its name.
    """
    if module == "npu_keras":
        return Finding(module, __version__)
    names = _distributions().get(module)
    if not names:
        return Finding(module, "not installed", usable=False)
    text = importlib.metadata.version(names[0])
    dashed = module.replace("_", "-")
    return Finding(module, text if names[0].lower() in (module, dashed) else f"{text} ({names[0]})")


@functools.cache
def _distributions() -> Mapping[str, Sequence[str]]:
    return importlib.metadata.packages_distributions()


def devices() -> Iterator[Finding]:
    """Yields the devices that TensorFlow sees."""
    import tensorflow as tf

    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    memory = _gpu_memory()
    for device in tf.config.list_physical_devices():
        name = device.name.removeprefix("/physical_device:")
        if device.device_type == "CPU":
            yield Finding(name, f"{cores} of {os.cpu_count()} cores")
            continue
        details = tf.config.experimental.get_device_details(device)
        parts = [str(details.get("device_name", device.device_type))]
        if "compute_capability" in details:
            major, minor = details["compute_capability"]
            parts.append(f"compute capability {major}.{minor}")
        yield Finding(name, ", ".join(parts))
    yield from (Finding("nvidia-smi", text, usable=False) for text in memory)


def _gpu_memory() -> list[str]:
    """What the driver says of each GPU; TensorFlow does not tell how much memory one has."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = ["--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run([command, *query], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ["does not answer"]
    return done.stdout.splitlines() if done.returncode == 0 else ["finds no GPU"]


def float16() -> Iterator[Finding]:
    """Yields, for each kind of device, how long a loss-scaled step takes in two precisions."""
    import tensorflow as tf

    backend = _backend()
    yield backend._replace(usable=False)
    if not backend.usable:
        return
    kinds = dict.fromkeys(device.device_type for device in tf.config.list_logical_devices())
    for kind in kinds:
        device = f"{kind}:0"
        try:
            half, full = (_step_ms(device, policy) for policy in ("mixed_float16", "float32"))
        except Exception as error:  # whatever a device or its driver raises
            yield Finding(device, f"does not work: {one_line(error)}", usable=False)
        else:
            yield Finding(device, f"{half:.2f} ms in mixed_float16, {full:.2f} ms in float32")


def _backend() -> Finding:
    name, hint = "Keras backend", "; set KERAS_BACKEND=tensorflow"
    try:
        import keras
    except Exception as error:  # of a backend that is not installed, too
        chosen = os.environ.get("KERAS_BACKEND", "not set")
        text = f"KERAS_BACKEND is {chosen}: {one_line(error)}"
        return Finding(name, text + hint, usable=False)
    backend = keras.backend.backend()
    if backend != "tensorflow":
        return Finding(name, backend + hint, usable=False)
    return Finding(name, backend)


def _step_ms(device: str, policy: str) -> float:
    import tensorflow as tf

    with tf.device(device):
        model, optimizer = _model(policy)
        data = tf.random.stateless_uniform([_ROWS, _UNITS], seed=[1, 2])
        before = [weight.numpy() for weight in model.trainable_variables]

        @tf.function
        def step() -> None:
            with tf.GradientTape() as tape:
                loss = optimizer.scale_loss(tf.reduce_mean((model(data) - 1.0) ** 2))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

        seconds = []
        for _ in range(1 + _STEPS):
            started = time.perf_counter()
            step()
            applied = int(optimizer.iterations.numpy())  # waits for the device
            seconds.append(time.perf_counter() - started)
    after = [weight.numpy() for weight in model.trainable_variables]
    if applied != 1 + _STEPS or all((a == b).all() for a, b in zip(after, before, strict=True)):
        raise RuntimeError(f"{1 + _STEPS - applied} of {1 + _STEPS} steps overflowed")
    return statistics.median(seconds[1:]) * 1000  # the first one traces


def _model(policy: str) -> tuple[Any, Any]:
    import keras

    from npu_keras.loss_scale import FixedLossScaleManager
    from npu_keras.optimizers import NPULossScaleOptimizer

    layers = [
        keras.layers.Input([_UNITS]),
        keras.layers.Dense(_UNITS, "relu", dtype=policy),
        keras.layers.Dense(1, dtype="float32"),
    ]
    manager = FixedLossScaleManager(2.0**8)
    return keras.Sequential(layers), NPULossScaleOptimizer(keras.optimizers.SGD(1e-3), manager)


def engines() -> Iterator[Finding]:
    """Yields which engines can be used, and why the others cannot."""
    from npu_keras import engines as engines_
    from npu_keras.engines import mpi_library

    usable = {
        "local": Finding("local", "usable: one process"),
        "mpi": _mpi(mpi_library.candidates()),
        "collective": Finding("collective", "usable when TF_CONFIG lists several workers"),
        "horovod": _by_module("horovod", ("horovod",), "after hvd.init()"),
        "hccl": _by_module("hccl", ("npu_device", "npu_bridge"), "when RANK_SIZE is above 1"),
    }
    yield from (finding._replace(usable=False) for finding in usable.values())
    chosen = engines_._choose()
    text = "found here" if usable[chosen].usable else "asked for, but it cannot be used"
    yield Finding(f"-> {chosen}", text, usable[chosen].usable)


def _mpi(libraries: Sequence[str]) -> Finding:
    if importlib.util.find_spec("mpi4py") is None:
        return Finding("mpi", "no: mpi4py is missing; pip install 'npu-keras[mpi]'", usable=False)
    try:
        mpiexec = _without_home(launch_plan.find_mpiexec())
        command = [sys.executable, "-P", "-c", _MPI_VERSION, *libraries]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MPI_TIMEOUT_S)
    except (ValueError, OSError, subprocess.TimeoutExpired) as error:
        return Finding("mpi", f"no: {one_line(error)}", usable=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        return Finding("mpi", f"no: {_without_home(last)}", usable=False)
    library = " ".join(done.stdout.partition("\n")[0].split())
    return Finding("mpi", f"usable under mpiexec: {library}, {mpiexec}")


def _by_module(engine: str, modules: tuple[str, ...], when: str) -> Finding:
    found = [name for name in modules if importlib.util.find_spec(name)]
    if not found:
        return Finding(engine, f"no: {' and '.join(modules)} not installed", usable=False)
    return Finding(engine, f"usable {when}: {found[0]} is installed")


def _without_home(text: str) -> str:
    for path, name in ((sys.prefix, "{prefix}"), (str(Path.home()), "~")):
        if len(path) > 1:
            text = text.replace(path, name)
    return text
