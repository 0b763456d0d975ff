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
