# SPDX-License-Identifier: Apache-2.0
"""Which modules a script finds, and what it is told about others."""

import importlib
import importlib.machinery
import subprocess
import sys
import types

import pytest

from npu_keras import adapters, ascend
from npu_keras.ascend import importing, ranks
from npu_keras.ascend.__main__ import imports_keras
from npu_keras.ascend.hardware import Options, check_group, warn_once
from npu_keras.ascend.names import MODULES, STARRED, source


@pytest.fixture
def installed():
    ascend.install()
    yield
    ascend.uninstall()


def test_every_name_has_something_behind_it(installed):
    for module, names in MODULES.items():
        found = importlib.import_module(module)
        assert {*found.__all__} - {*STARRED.get(module, ())} == {*names}
        for name in names:
            assert getattr(found, name) is not None, (module, name)
            where = source(module, name)
            if where.endswith(f":{name}") and not name.endswith("_v3"):
                assert getattr(found, name).__name__ == name


def test_names_that_are_not_here_say_so_and_list_what_is(installed):
    with pytest.raises(
        ImportError, match=r"no `npu_bridge.npu_cpu`. In `npu_bridge` there is: est"
    ):
        importlib.import_module("npu_bridge.npu_cpu")
    with pytest.raises(ImportError, match="there is: NPULossScaleOptimizer"):
        exec("from npu_bridge.estimator.npu.npu_loss_scale_optimizer import Other")
    module = importlib.import_module("hccl.split.api")
    with pytest.raises(AttributeError, match="set_split_strategy_by_idx, set_split_strategy_by"):
        module.set_split_strategy_by_name  # noqa: B018


def test_names_imported_out_of_habit_are_errors_when_they_are_used(installed):
    script = {}
    exec(
        "from npu_bridge.estimator.npu.npu_estimator import NPUEstimator, NPUEstimatorSpec", script
    )
    exec("from npu_bridge.npu_init import *", script)
    exec("from npu_bridge.estimator.npu import npu_rnn", script)
    reason = (
        r"no `npu_bridge.*NPUEstimator`: TensorFlow has had no `tf.estimator` since 2.16: train"
    )
    with pytest.raises(RuntimeError, match=reason):
        script["NPUEstimator"](model_fn=None)
    with pytest.raises(RuntimeError, match=reason):
        exec("class Mine(NPUEstimator): pass", script)
    with pytest.raises(RuntimeError, match="NPUStrategy`: start a process for each device"):
        script["NPUStrategy"].scope()
    with pytest.raises(RuntimeError, match="npu_run_config_init`: TensorFlow has had no"):
        script["npu_run_config_init"](run_config=None)
    with pytest.raises(RuntimeError, match="npu_dynamic_rnn`: use the recurrent layers of Keras"):
        script["npu_rnn"].npu_dynamic_rnn()
    with pytest.raises(RuntimeError, match="send`: use `allgather` or `broadcast`"):
        script["hccl_ops"].send(1.0)


def test_without_install_there_is_nothing():
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("npu_bridge")


def test_stand_ins_are_no_adapters(installed):
    importlib.import_module("npu_device")
    importlib.import_module("npu_bridge.npu_init")
    assert adapters.installed() == ()


def test_an_installed_adapter_is_not_hidden(monkeypatch):
    real = types.ModuleType("npu_device")
    real.__spec__ = importlib.machinery.ModuleSpec("npu_device", None, origin="/a/file.py")
    monkeypatch.setitem(sys.modules, "npu_device", real)
    assert adapters.installed() == ("npu_device",)
    with pytest.raises(RuntimeError, match=r"\('npu_device',\) are installed here"):
        ascend.install()
    assert importing._finder not in sys.meta_path


def test_hardware_options_warn_once_and_are_kept():
    options = Options("npu_device.options()")
    with pytest.warns(
        UserWarning, match="`npu_device.options.*dump.path` has no effect here: it is"
    ):
        options.dump.path = "/tmp/x"
    options.dump.path = "/tmp/y"
    assert options.dump.path == "/tmp/y"
    with pytest.warns(UserWarning, match="`other` has no effect here: because"):
        warn_once("other", "because")
    warn_once("other", "because")


def test_there_is_one_group_of_many_names():
    check_group("hccl_world_group")
    with pytest.raises(ValueError, match=r"that of all, called \['hccl_world_group'\].*'mine'"):
        check_group("mine")
    with pytest.raises(ValueError, match=r"Only a group of all ranks.*\[0\].*rank_ids=\[0, 1\]"):
        ranks.create_group("mine", 2, [0, 1])
    ranks.create_group("mine", 1, [0])
    assert (ranks.get_rank_size("mine"), ranks.get_rank_id("mine")) == (1, 0)
    assert ranks.get_world_rank_from_group_rank("mine", 0) == 0
    ranks.destroy_group("mine")
    for gone in ("mine", "hccl_world_group"):
        with pytest.raises(ValueError, match="group='"):
            ranks.destroy_group(gone)


@pytest.mark.parametrize(
    "script, means_keras_3",
    [
        ("import keras", True),
        ("from keras.layers import Dense", True),
        ("import tensorflow as tf\nfrom tensorflow import keras", False),
        ("import keras_tuner", False),
        ("# -*- coding: gbk -*-\nimport keras  # 训练", True),
    ],
)
def test_which_keras_a_script_means(script, means_keras_3, tmp_path):
    path = tmp_path / "script.py"
    path.write_text(script, encoding="gbk" if "gbk" in script else "utf-8")
    assert imports_keras(path) == means_keras_3


def test_a_script_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("import keras\nif:\n")
    with pytest.raises(SyntaxError) as caught:
        imports_keras(path)
    assert (caught.value.filename, caught.value.lineno) == (str(path), 2)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["nothing.py"], "expected the path of a Python script, received 'nothing.py'"),
        (["--product", "Atlas 9", __file__], "Atlas training series: saturation (default)"),
        (["--product", "Atlas inference series", __file__], "not supported on this product"),
    ],
)
def test_arguments_that_make_no_sense(arguments, message):
    command = [sys.executable, "-m", "npu_keras.ascend", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 2
    assert message in ended.stderr
