# SPDX-License-Identifier: Apache-2.0
"""How an engine is found, and the engine of a single process."""

import json
import subprocess
import sys
import types

import pytest
import tensorflow as tf

from npu_keras import engines
from npu_keras.engines import mpi_library
from npu_keras.engines.collective import CollectiveEngine
from npu_keras.engines.local import LocalEngine
from npu_keras.engines.mpi import MpiEngine

RANK_VARIABLES = ("TF_CONFIG", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "RANK_ID", "RANK_SIZE")
TWO_WORKERS = json.dumps(
    {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
)


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch):
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(engines, "_found", {})


@pytest.fixture
def chosen(monkeypatch):
    """Classes that stand for the engines and tell which was made."""
    made = []
    for name, class_name in engines._CLASSES.items():
        module = types.SimpleNamespace(
            **{class_name: lambda timeout_s, name=name: made.append((name, timeout_s)) or name}
        )
        monkeypatch.setitem(sys.modules, f"npu_keras.engines.{name}", module)
    return made


def test_a_single_process_is_local():
    engine = engines.find()
    assert isinstance(engine, LocalEngine)
    assert isinstance(engine, engines.Engine)
    assert (engine.name, engine.rank, engine.size) == ("local", 0, 1)
    assert engines.find() is engine
    assert engines.find("local") is engine


@pytest.mark.parametrize(
    "variables, name",
    [
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "mpi"),
        ({"TF_CONFIG": TWO_WORKERS}, "collective"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "TF_CONFIG": TWO_WORKERS}, "mpi"),
        ({"RANK_ID": "1", "RANK_SIZE": "2", "TF_CONFIG": TWO_WORKERS}, "collective"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, "local"),
        ({"RANK_ID": "0", "RANK_SIZE": "1"}, "local"),
    ],
)
def test_the_environment_chooses(monkeypatch, chosen, variables, name):
    for key, value in variables.items():
        monkeypatch.setenv(key, value)
    assert engines.find(timeout_s=7.0) == name
    assert engines.find() == name
    assert chosen == [(name, 7.0)]


def test_horovod_is_chosen_only_when_initialised(monkeypatch, chosen):
    horovod = types.SimpleNamespace(is_initialized=lambda: False)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", horovod)
    monkeypatch.setenv("TF_CONFIG", TWO_WORKERS)
    assert engines.find() == "collective"
    horovod.is_initialized = lambda: True
    assert engines.find() == "horovod"


def test_hccl_is_chosen_when_its_adapter_is_installed(monkeypatch, chosen):
    monkeypatch.setenv("RANK_ID", "0")
    monkeypatch.setenv("RANK_SIZE", "8")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name == "npu_bridge")
    assert engines.find() == "hccl"


@pytest.mark.parametrize("source", ["slurm", "ascend"])
def test_ranks_without_an_engine_are_an_error_that_says_what_to_do(monkeypatch, source):
    names = {"slurm": ("SLURM_PROCID", "SLURM_NTASKS"), "ascend": ("RANK_ID", "RANK_SIZE")}[source]
    monkeypatch.setenv(names[0], "1")
    monkeypatch.setenv(names[1], "4")
    with pytest.raises(engines.EngineError, match=f"rank 1 of 4, as {source} says.*mpiexec"):
        engines.find()


def test_ranks_that_know_of_different_numbers_of_ranks_are_told():
    says = "Device /job:worker is joining a group with size2, but that group has size 3 (group_key"
    for size, other in ((2, 3), (3, 2)):
        rank = types.SimpleNamespace(rank=1, size=size)
        wanted = f"{size} workers on rank 1, {other} workers on another rank"
        with pytest.raises(engines.EngineError, match=wanted):
            CollectiveEngine._refuse_other_sizes(rank, says)
        CollectiveEngine._refuse_other_sizes(rank, "Collective has timed out")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"\('local', 'mpi', .*Received: name='nccl'"):
        engines.find("nccl")


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan")])
def test_a_time_out_must_be_positive(timeout_s):
    with pytest.raises(ValueError, match="timeout_s"):
        engines.find("local", timeout_s=timeout_s)


def test_named_engines_say_what_they_lack(monkeypatch):
    with pytest.raises(engines.EngineError, match="TF_CONFIG"):
        engines.find("collective")
    with pytest.raises(engines.EngineError, match="hvd.init"):
        engines.find("horovod")
    with pytest.raises(engines.EngineError, match="npu_device"):
        engines.find("hccl")
    monkeypatch.setenv("TF_CONFIG", TWO_WORKERS)
    tf.constant(0)
    with pytest.raises(engines.EngineError, match="before TensorFlow makes its first tensor"):
        engines.find("collective")


def test_a_missing_mpi4py_is_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(engines.EngineError, match=r"npu-keras\[mpi\]"):
        engines.find("mpi")


def test_the_mpi_library_is_found_among_the_installed_files():
    pytest.importorskip("mpi4py")
    paths = mpi_library.candidates()
    assert any("libmpi.so." in path or path.endswith(".dylib") for path in paths), paths


def test_an_mpi_of_another_launcher_is_refused(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    world = types.SimpleNamespace(rank=0, size=1)
    monkeypatch.setattr(
        mpi_library, "load", lambda timeout_s: types.SimpleNamespace(COMM_WORLD=world)
    )
    with pytest.raises(engines.EngineError, match="rank 1 of 2.*Received: rank 0 of 1"):
        engines.find("mpi")


def test_importing_the_engines_starts_nothing():
    script = (
        "import sys; from npu_keras import engines, _upstream;"
        "print('mpi4py' in sys.modules, _upstream.runtime_has_started())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["False", "False"]


def test_local_returns_what_it_is_given():
    engine = LocalEngine()
    tensors = [tf.constant([1.0, 2.0]), tf.constant(3, tf.int32)]
    for method in (
        lambda t: engine.all_reduce(t, reduction="sum", lane=0, label="x"),
        lambda t: engine.broadcast(t, lane=0, label="x"),
        lambda t: [engine.all_gather(each, lane=0, label="x") for each in t],
    ):
        for run in (method, tf.function(method, jit_compile=True, autograph=False)):
            assert [r.numpy().tolist() for r in run(tensors)] == [[1.0, 2.0], 3]
    assert engine.exchange((1, "a")) == [[1, "a"]]
    engine.barrier("x")
    engine.shutdown()


def test_bad_arguments_are_refused_before_anything_travels():
    engine = LocalEngine()
    with pytest.raises(ValueError, match="Received: reduction='mean'. For a mean, divide"):
        engine.all_reduce([], reduction="mean", lane=0, label="x")
    with pytest.raises(ValueError, match="root_rank to be from 0 to 0. Received: root_rank=1"):
        engine.broadcast([], root_rank=1, lane=0, label="x")


def test_capabilities_tell_what_cannot_be_compiled():
    assert LocalEngine.capabilities == {"in_graph", "xla", "async"}
    for engine in (MpiEngine, CollectiveEngine):
        assert engine.capabilities == {"async"}
