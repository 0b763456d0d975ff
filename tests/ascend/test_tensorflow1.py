# SPDX-License-Identifier: Apache-2.0
"""Scripts for TensorFlow 1: how they are told, and one that knows nothing of TensorFlow 2."""

import contextlib
import sys
import tempfile
from pathlib import Path

import pytest
from running import SIZES, read, start, wait

from npu_keras.ascend import tensorflow1

pytestmark = [pytest.mark.tf, pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(400)]

SCRIPT = (str(Path(__file__).parent / "scripts" / "tensorflow1" / "train.py"), "--steps", "4")


def write(folder, **files):
    for name, text in files.items():
        folder.joinpath(f"{name}.py").write_text(text)
    return folder / "main.py"


@pytest.mark.parametrize(
    "main, other, is_old",
    [
        ("import tensorflow as tf\nx = tf.placeholder(tf.float32)", "", True),
        ("import tensorflow\ntensorflow.contrib.slim", "", True),
        ("from tensorflow import get_variable", "", True),
        ("import other", "import tensorflow as tf\ntf.Session()", True),
        ("from other import f", "import tensorflow as tf\ntf.Session()", True),
        ("import tensorflow.compat.v1 as tf\ntf.placeholder(tf.float32)", "", True),
        ("import tensorflow.compat.v1 as tf\ntf.disable_v2_behavior()\ntf.Session()", "", False),
        ("import tensorflow as tf\ntf.compat.v1.disable_eager_execution()", "", False),
        ("import tensorflow as tf\ntf.Variable(1.0)", "import tensorflow as tf\ntf.Session", False),
        ("import tensorflow as tf\nimport other", "print 'Python 2'", False),
    ],
)
def test_which_scripts_are_for_tensorflow_1(tmp_path, main, other, is_old):
    assert tensorflow1.is_for_tensorflow_1(write(tmp_path, main=main, other=other)) == is_old


def test_files_of_the_script_are_read_for_tensorflow_1_and_others_as_they_are(
    tmp_path, monkeypatch
):
    import tensorflow as tf

    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "other_file_1", None)
    del sys.modules["other_file_1"]
    main = "import json\nimport other_file_1\nother_file_1.results.append(__name__)"
    other = (
        "import tensorflow, tensorflow as tf\nfrom tensorflow import Session\n"
        "results = [tf, tensorflow, Session]"
    )
    finders = list(sys.meta_path)
    tensorflow1.run(write(tmp_path, main=main, other_file_1=other))
    v1 = tf.compat.v1
    assert sys.modules["other_file_1"].results == [v1, v1, v1.Session, "__main__"]
    assert not (tmp_path / "__pycache__").exists()
    assert sys.meta_path == finders
    assert sys.modules["__main__"].__name__ == "__main__"


def test_what_is_gone_is_explained():
    import tensorflow as tf

    with pytest.raises(AttributeError) as gone:
        tf.compat.v1.contrib.slim  # noqa: B018
    tensorflow1.explain(gone.value)
    assert gone.value.__notes__ == [tensorflow1.GONE["contrib"]]
    with pytest.raises(ImportError) as gone:
        __import__("tensorflow.estimator")
    tensorflow1.explain(gone.value)
    assert gone.value.__notes__ == [tensorflow1.GONE["estimator"]]
    other = AttributeError("no attribute 'contributor'")
    tensorflow1.explain(other)
    assert not hasattr(other, "__notes__")


@pytest.fixture(scope="module")
def outputs():
    """What the script printed, alone and on two ranks; both run side by side."""
    with contextlib.ExitStack() as stack:
        files = {size: stack.enter_context(tempfile.TemporaryFile()) for size in SIZES}
        return wait([start(size, file, SCRIPT) for size, file in files.items()], files)


@pytest.mark.parametrize("size", SIZES)
def test_a_script_runs_as_it_is(outputs, size):
    """It says `import tensorflow as tf`; only the last rank overflows, in the second step."""
    results = read(outputs[size], size)
    assert "tensorflow1" in results, outputs[size][-4000:]
    for rank, result in enumerate(sorted(results["tensorflow1"], key=lambda r: r["device"])):
        assert result == {
            "argv": ["--steps", "4"],
            "weights": [1 - 3 * 0.5 * size, 1.0],
            "steps": 3,
            "scale": 8.0,
            "seen": [[16.0, True], [16.0, False], [8.0, True], [8.0, True]],
            "device": str(rank),
        }
    assert "deprecated" not in outputs[size]
