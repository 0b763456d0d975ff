# SPDX-License-Identifier: Apache-2.0
"""Engines: the ways gradients travel between ranks, and how the right one is found."""

import importlib
import sys

from npu_keras import adapters, cluster
from npu_keras._arguments import is_real
from npu_keras.engines.base import (
    DEFAULT_TIMEOUT_S,
    REDUCTIONS,
    Engine,
    EngineError,
    EngineTimeout,
    Reduction,
)

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "NAMES",
    "REDUCTIONS",
    "Engine",
    "EngineError",
    "EngineTimeout",
    "Reduction",
    "find",
]

_CLASSES = {
    "local": "LocalEngine",
    "mpi": "MpiEngine",
    "collective": "CollectiveEngine",
    "horovod": "HorovodEngine",
    "hccl": "HcclEngine",
}
NAMES = tuple(_CLASSES)
_found: dict[str, Engine] = {}


def find(name: str | None = None, timeout_s: float = DEFAULT_TIMEOUT_S) -> Engine:
    """Returns the engine of this process; made once for each name.

    Without a name the first that applies: `"horovod"` if `horovod.tensorflow` is imported and
    initialised; `"mpi"` under `mpiexec`; `"collective"` if `TF_CONFIG` lists several workers;
    `"hccl"` if an Ascend adapter is installed and `RANK_SIZE` is above 1; else `"local"`.

    All ranks must call it, and early: the collective engine must exist before TensorFlow makes
    its first tensor.

    Args:
        name: str or None, one of `NAMES`.
        timeout_s: float, the longest wait for another rank, in seconds. Counts for the call that
            makes the engine.

    Raises:
        ValueError: if the name is unknown, or the environment contradicts itself.
        EngineError: if the engine cannot be used here.
        EngineTimeout: if a rank does not start within the time-out.

    Example:

    >>> find().name
    'local'
    """
    if name is None:
        name = _choose()
    if not isinstance(name, str) or name not in _CLASSES:
        raise ValueError(
            f"Expected the name of an engine, one of {NAMES}, or None to find one. "
            f"Received: name={name!r}."
        )
    if not is_real(timeout_s) or not timeout_s > 0:
        raise ValueError(f"Expected timeout_s above 0 seconds. Received: timeout_s={timeout_s!r}.")
    if name not in _found:
        module = importlib.import_module(f"npu_keras.engines.{name}")
        _found[name] = getattr(module, _CLASSES[name])(timeout_s=timeout_s)
    return _found[name]


def _choose() -> str:
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod is not None and horovod.is_initialized():
        return "horovod"
    place = cluster.find()
    if place.size == 1:
        return "local"
    if place.source == "mpi":
        return "mpi"
    if place.workers:
        return "collective"
    if place.source == "ascend" and adapters.installed():
        return "hccl"
    raise EngineError(
        f"Expected an engine for rank {place.rank} of {place.size}, as {place.source} says. Found "
        "none: there is no `mpiexec`, no TF_CONFIG, no Horovod and no Ascend adapter. Start with "
        "`python -m npu_keras run`, `mpiexec` or `srun --mpi=pmi2`, or set TF_CONFIG; for a "
        "single process unset the variables of the rank."
    )
