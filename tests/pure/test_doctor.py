# SPDX-License-Identifier: Apache-2.0
"""What the doctor says and returns, with its probes replaced by their findings."""

import subprocess
import sys
from types import SimpleNamespace

import numpy
import pytest

from npu_keras import cluster, doctor, doctor_probes, launch_plan
from npu_keras.doctor_probes import Finding


@pytest.fixture
def healthy(monkeypatch):
    for name in cluster.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for probe in ("devices", "float16", "engines"):
        monkeypatch.setattr(doctor_probes, probe, lambda probe=probe: iter([Finding(probe, "ok")]))


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_everything_usable_is_status_0(healthy, capsys):
    assert doctor.main([]) == 0
    text = lines(capsys)
    assert f"  {'numpy':<14}{numpy.__version__}" in text
    assert "  devices       ok" in text
    assert "  environment   no variable names a rank" in text
    assert "  this process  rank 0 of 1, one process" in text
    assert text[-1] == "Result: usable"


@pytest.mark.parametrize("probe", ["devices", "float16", "engines"])
def test_nothing_usable_of_one_kind_is_status_1(healthy, monkeypatch, capsys, probe):
    found = iter([Finding("CPU:0", "broken", usable=False)])
    monkeypatch.setattr(doctor_probes, probe, lambda: found)
    assert doctor.main([]) == 1
    text = lines(capsys)
    assert "  CPU:0         broken" in text
    assert len(text[text.index("Result: not usable") + 1 :]) == 1


def test_an_error_is_a_finding_and_the_rest_is_still_said(healthy, monkeypatch, capsys):
    def broken():
        yield Finding("GPU:0", "a card")
        raise ImportError("libcuda.so.1:\n cannot open")

    monkeypatch.setattr(doctor_probes, "devices", broken)
    assert doctor.main([]) == 0
    text = lines(capsys)
    assert "  error         ImportError: libcuda.so.1: cannot open" in text
    assert "  engines       ok" in text


def test_variables_of_ranks_are_shown_and_no_others(healthy, monkeypatch, capsys):
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("RANK_SIZE", "2")
    monkeypatch.setenv("API_TOKEN", "hush")
    assert doctor.main([]) == 0
    text = lines(capsys)
    assert [t for t in text if "RANK" in t] == ["  RANK_ID       '1'", "  RANK_SIZE     '2'"]
    assert "  this process  rank 1 of 2, as ascend says" in text
    assert "hush" not in "".join(text)


def test_variables_that_contradict_each_other_are_status_1(healthy, monkeypatch, capsys):
    monkeypatch.setenv("RANK_ID", "5")
    monkeypatch.setenv("RANK_SIZE", "2")
    assert doctor.main([]) == 1
    text = lines(capsys)
    assert any(t.startswith("  error         ValueError: Expected a rank from 0") for t in text)
    assert text[-1] == "  nothing usable under 'Ranks'"


def test_the_home_folder_is_not_told(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    error = OSError(f"{tmp_path}/lib/x.so and {sys.prefix}/bin: no")
    assert doctor_probes.one_line(error) == "OSError: ~/lib/x.so and {prefix}/bin: no"


def test_versions_of_what_is_not_there_or_has_another_name(monkeypatch):
    names = {"a_b": ["a-b"], "numpy": ["numpy"], "tensorflow": ["numpy"]}
    monkeypatch.setattr(doctor_probes, "_distributions", lambda: names)
    assert doctor_probes.version("numpy").text == numpy.__version__
    assert doctor_probes.version("tensorflow").text == f"{numpy.__version__} (numpy)"
    assert doctor_probes.version("keras") == Finding("keras", "not installed", usable=False)


@pytest.mark.parametrize(
    "result, lines",
    [
        (
            SimpleNamespace(returncode=0, stdout="0, A, 81559 MiB, 550.1\n"),
            ["0, A, 81559 MiB, 550.1"],
        ),
        (SimpleNamespace(returncode=9, stdout="no driver"), ["finds no GPU"]),
        (subprocess.TimeoutExpired("nvidia-smi", 20), ["does not answer"]),
    ],
)
def test_what_the_driver_says(monkeypatch, result, lines):
    def run(*_, **__):
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(doctor_probes.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(doctor_probes.subprocess, "run", run)
    assert doctor_probes._gpu_memory() == lines
    monkeypatch.setattr(doctor_probes.shutil, "which", lambda name: None)
    assert doctor_probes._gpu_memory() == []


def test_without_mpiexec_mpi_is_not_usable(monkeypatch):
    def missing():
        raise ValueError("Expected mpiexec in a folder. Received: none.")

    monkeypatch.setattr(launch_plan, "find_mpiexec", missing)
    monkeypatch.setattr(doctor_probes.importlib.util, "find_spec", lambda name: True)
    finding = doctor_probes._mpi([])
    assert finding == Finding(
        "mpi", "no: ValueError: Expected mpiexec in a folder. Received: none.", False
    )
    monkeypatch.setattr(doctor_probes.importlib.util, "find_spec", lambda name: None)
    assert doctor_probes._mpi([]).text.startswith("no: mpi4py is missing; pip install")


def test_a_library_that_does_not_load_is_named(monkeypatch):
    done = SimpleNamespace(returncode=1, stdout="", stderr="Traceback\nImportError: libmpi.so.12\n")
    monkeypatch.setattr(launch_plan, "find_mpiexec", lambda: f"{sys.prefix}/bin/mpiexec")
    monkeypatch.setattr(doctor_probes.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(doctor_probes.subprocess, "run", lambda *_, **__: done)
    assert doctor_probes._mpi([]) == Finding("mpi", "no: ImportError: libmpi.so.12", False)
    done.returncode, done.stdout = 0, "MPICH Version:      5.0.2\nMPICH Release date: now\n"
    assert doctor_probes._mpi([]).text == (
        "usable under mpiexec: MPICH Version: 5.0.2, {prefix}/bin/mpiexec"
    )


def test_without_tensorflow_everything_is_still_said(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    assert doctor.main([]) == 1
    text = lines(capsys)
    assert sum(t.startswith("  error         ModuleNotFoundError: ") for t in text) == 3
    assert [t for t in text if "nothing usable" in t] == [
        f"  nothing usable under {title!r}" for title in ("Devices", "Training step", "Engines")
    ]
