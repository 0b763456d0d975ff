# SPDX-License-Identifier: Apache-2.0
"""What `import npu_keras` needs, and what it leaves alone."""

import subprocess
import sys

import npu_keras

BLOCKED = ("matplotlib", "sklearn", "mpi4py", "horovod", "IPython")

SCRIPT = f"""
import sys
for name in {BLOCKED!r}:
    sys.modules[name] = None  # its import raises ImportError
import npu_keras
for name in npu_keras.__all__:
    getattr(npu_keras, name)
import keras
optimizer = npu_keras.NPUOptimizer(
    keras.optimizers.SGD(0.5), npu_keras.FixedLossScaleManager(2), is_loss_scale=True
)
variable = keras.Variable(1.0)
optimizer.build([variable])
optimizer.scale_loss(0.0)
optimizer.apply([keras.ops.convert_to_tensor(2.0)], [variable])
print(float(variable), sorted(m for m in {BLOCKED!r} if sys.modules.get(m)))
"""


def python(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_needs_neither_plotting_nor_data_sets_nor_mpi():
    assert python(SCRIPT) == "0.5 []"


def test_the_other_keras_is_left_alone():
    script = "import npu_keras, sys; npu_keras.NPUOptimizer; print('tf_keras' in sys.modules)"
    assert python(script) == "False"


def test_every_public_name_is_there():
    for name in npu_keras.__all__:
        assert getattr(npu_keras, name) is not None
    assert set(npu_keras.__all__) <= set(dir(npu_keras))


SHADOWED = """
import importlib, inspect, pkgutil
import npu_keras

PLAIN = ("builtins", "typing")


def is_ours(thing):
    return thing.__module__.split(".")[0] == "npu_keras"


def private(cls):
    return {n for n in vars(cls) if n.startswith("_") and not n.endswith("__") and n[:4] != "_abc"}


classes = set()
for info in pkgutil.walk_packages(npu_keras.__path__, "npu_keras."):
    if not info.name.endswith("__main__"):
        found = vars(importlib.import_module(info.name)).values()
        classes |= {cls for cls in found if inspect.isclass(cls) and is_ours(cls)}
shadowed = set()
for cls in classes:
    ours = set().union(*(private(base) for base in cls.__mro__ if is_ours(base)))
    theirs = [base for base in cls.__mro__ if not is_ours(base) and base.__module__ not in PLAIN]
    shadowed |= ours & set().union(*(private(base) for base in theirs))
assert len(classes) > 100
print(sorted(shadowed))
"""


def test_no_private_name_stands_before_one_of_a_class_we_derive_from():
    """But the one that is meant to: see `_upstream_tf_keras.fresh_children`."""
    assert python(SHADOWED) == "['_trackable_children']"
