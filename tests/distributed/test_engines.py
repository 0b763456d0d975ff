# SPDX-License-Identifier: Apache-2.0
"""The engines that start processes, with real ones."""

import re
import textwrap
from pathlib import Path

import pytest
from launch import run_ranks

HERE = Path(__file__).parent
pytestmark = [pytest.mark.distributed, pytest.mark.timeout(240)]
ENGINES = pytest.mark.parametrize("engine", ["mpi", "collective"])


@ENGINES
@pytest.mark.parametrize("size", [2, 3])
def test_every_call(engine, size):
    for result in run_ranks(
        HERE / "engine_worker.py", size, engine, engine, str(size), timeout_s=200
    ):
        assert result.returncode == 0, result.output
        assert "all is well" in result.output


def test_mpi_without_thread_multiple_has_one_order_and_says_so():
    for result in run_ranks(HERE / "engine_worker.py", 2, "mpi", "mpi", "2", "serialized"):
        assert result.returncode == 0, result.output
        assert result.output.count("no MPI_THREAD_MULTIPLE") == 1


def fail(engine, size, how, who, mode):
    """Runs the failing worker; returns the results of the survivors, with their error."""
    results = run_ranks(HERE / "failing_worker.py", size, engine, how, str(who), mode, str(size))
    survivors = [result for result in results if result.rank != who]
    for result in survivors:
        assert result.returncode == 3, result.output
        assert re.search(rf"Rank {who} has (died|left|been silent)", result.output), result.output
        assert float(re.search(r"^waited (.*)$", result.output, re.M)[1]) < 10
    return results[who], [re.search(r"^error (.*)$", r.output, re.M)[1] for r in survivors]


@ENGINES
def test_a_killed_rank_is_named_by_all_others(engine):
    killed, errors = fail(engine, 3, "kill", 1, "graph")
    assert killed.returncode == 137
    for error in errors:
        assert re.search(r"Rank 1 has died|/task:1\b", error), error
        assert "dense/kernel" in error
        assert re.search(r"lane.1", error), error


@ENGINES
def test_a_stopped_rank_is_named_after_the_time_out(engine):
    _, [error] = fail(engine, 2, "stop", 1, "graph")
    assert re.search(
        r"Rank 1 has been silent for \d\.\d s\. Waited 5 s for all_reduce of dense/", error
    )
    assert "(lane 1)" in error


@ENGINES
def test_a_rank_that_leaves_early_is_named_with_its_number_of_collectives(engine):
    left, [error] = fail(engine, 2, "leave", 0, "eager")
    assert left.returncode == 0, left.output
    assert "Rank 0 has left after 5 collectives" in error
    assert "all_reduce of dense/kernel (lane 1)" in error


@ENGINES
def test_a_rank_that_never_starts_the_engine_is_named(engine):
    script = """
    import sys
    from npu_keras import cluster, engines
    if cluster.find().rank == 1:
        sys.exit()
    try:
        engines.find(timeout_s=4)
    except engines.EngineTimeout as error:
        print("raised", error)
    """
    first, _, last = run_ranks(textwrap.dedent(script), 3, engine)
    for result in (first, last):
        assert result.returncode == 0, result.output
        if engine == "mpi":
            assert "raised Waited 4 s for all ranks to start MPI" in result.output
        else:
            assert re.search(r"raised Rank \[.*1.*\] did not start the engine", result.output)


def test_mpi_that_the_script_has_started_is_left_to_it():
    script = """
    from mpi4py import MPI
    import tensorflow as tf
    from npu_keras import engines
    engine = engines.find(timeout_s=60)
    [total] = engine.all_reduce([tf.ones(2)], reduction="sum", lane=0, label="x")
    engine.shutdown()
    print("sum", total.numpy().tolist(), "finalized", MPI.Is_finalized())
    """
    for result in run_ranks(textwrap.dedent(script), 2, "mpi"):
        assert result.returncode == 0, result.output
        assert "sum [2.0, 2.0] finalized False" in result.output
        assert "Set mpi4py.rc.finalize = False" in result.output
