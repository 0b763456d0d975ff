# SPDX-License-Identifier: Apache-2.0
"""`python -m npu_keras.ascend script.py`: runs a script that was written for Ascend's adapters."""

import argparse
import ast
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from npu_keras import cluster, products
from npu_keras.ascend import tensorflow1
from npu_keras.ascend.importing import ROOTS, install

_LEGACY = "TF_USE_LEGACY_KERAS"
_EPILOG = f"""\
The script finds {", ".join(ROOTS)}. Its `tf.keras` is tf_keras, with the optimizers of
`tf.keras.optimizers.legacy`, as with the TensorFlow 2.6 of the adapters; unless it imports `keras`
itself, or {_LEGACY} is set to 0. A script for TensorFlow 1 (`tf.placeholder`, `tf.Session`, ...)
gets `tf.compat.v1` for its `tensorflow`, without eager execution, as do files of its own that it
imports. RANK_SIZE, RANK_ID and DEVICE_ID are set for it. On several ranks:
python -m npu_keras run -n 2 -m npu_keras.ascend script.py
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a script as `__main__`, with the names of the adapters installed.

    Args:
        argv: arguments of the command line. Defaults to those of the process.
    """
    parser = _parser()
    options = parser.parse_args(argv)
    script = Path(options.script)
    if not script.is_file():
        parser.error(f"expected the path of a Python script, received {options.script!r}")
    try:
        products.set_product(options.product)
    except ValueError as error:
        parser.error(str(error))
    if not imports_keras(script):
        _choose_legacy_keras()
    install()
    is_old = tensorflow1.is_for_tensorflow_1(script)
    if is_old:
        tensorflow1.choose_graphs()
    here = cluster.find()
    if here.size > 1:
        _make_room_for_waiting()
        from npu_keras import engines

        engines.find()  # some engines have to exist before the script's first tensor
    _tell_ranks(here)
    sys.argv = [str(script), *options.args]
    sys.path[0] = str(script.resolve().parent)
    try:
        tensorflow1.run(script) if is_old else runpy.run_path(str(script), run_name="__main__")
    except (AttributeError, ImportError) as error:
        tensorflow1.explain(error)
        raise


def _make_room_for_waiting() -> None:
    """Gives sessions more threads than a small machine has cores, if the user has set no number.

    An optimizer that waits for other ranks holds one. Two of them on two cores would leave none to
    whatever the other ranks are waiting for.
    """
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(max(16, os.cpu_count() or 1)))


def imports_keras(script: Path) -> bool:
    """Whether a script imports `keras`, rather than `tf.keras`.

    Args:
        script: path of the script, in the encoding that its first lines say.
    """
    for node in ast.walk(ast.parse(script.read_bytes(), str(script))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        if any(name.partition(".")[0] == "keras" for name in names):
            return True
    return False


def _tell_ranks(here: cluster.Cluster) -> None:
    """Sets the variables that the adapters' launchers set, and that scripts read by themselves."""
    if "CM_WORKER_SIZE" not in os.environ:
        os.environ.setdefault("RANK_SIZE", str(here.size))
    os.environ.setdefault("RANK_ID", str(here.rank))
    for name in ("DEVICE_ID", "ASCEND_DEVICE_ID"):
        os.environ.setdefault(name, str(here.local_rank))
    os.environ.setdefault("JOB_ID", "npu_keras")


def _choose_legacy_keras() -> None:
    """Makes `tf.keras` that of the adapters' TensorFlow, unless the environment says otherwise."""
    if os.environ.setdefault(_LEGACY, "1") != "1":
        return
    import tensorflow as tf

    # What the optimizers' names meant until TensorFlow 2.10: a schedule, for example, is their
    # `learning_rate`, and can be called.
    optimizers = tf.keras.optimizers
    for name in dir(optimizers.legacy):
        if isinstance(getattr(optimizers.legacy, name), type) and name != "Optimizer":
            setattr(optimizers, name, getattr(optimizers.legacy, name))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_keras.ascend",
        description="Run a script for Ascend's TensorFlow adapters on a machine without one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(product.name for product in products.PRODUCTS if product.supported)
    parser.add_argument(
        "--product", metavar="NAME", help=f"recognise overflows as on this product: {names}"
    )
    parser.add_argument("script", help="Python script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="arguments of the script")
    return parser


if __name__ == "__main__":
    main()
