# SPDX-License-Identifier: Apache-2.0
import importlib.util
import re

import keras
import pytest
import tensorflow as tf

from npu_keras import cluster, doctor, doctor_probes, loss_scale


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    for name in cluster.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_this_installation_is_usable_and_every_kind_of_device_takes_a_step(capsys):
    assert doctor.main([]) == 0
    text = capsys.readouterr().out
    assert f"  tensorflow    {tf.__version__}" in text
    assert "  Keras backend tensorflow" in text
    kinds = {device.device_type for device in tf.config.list_physical_devices()}
    steps = re.findall(r"  (\w+):0 +([\d.]+) ms in mixed_float16, ([\d.]+) ms in float32", text)
    assert {kind for kind, *_ in steps} == kinds
    assert all(0 < float(ms) < 60_000 for _, *times in steps for ms in times)
    assert "  -> local      found here" in text
    if importlib.util.find_spec("mpi4py"):
        assert re.search(r"  mpi +(usable under mpiexec: \S+|no: \w+Error)", text)


def test_an_engine_that_is_asked_for_and_not_there_is_said(monkeypatch, capsys):
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("RANK_SIZE", "2")
    findings = list(doctor._guarded(doctor_probes.engines))
    assert not any(finding.usable for finding in findings)
    assert "EngineError: Expected an engine for rank 1 of 2" in findings[-1].text


def test_a_device_on_which_the_step_overflows_does_not_count(monkeypatch):
    fixed = loss_scale.FixedLossScaleManager
    monkeypatch.setattr(loss_scale, "FixedLossScaleManager", lambda _: fixed(2.0**127))
    findings = list(doctor_probes.float16())
    assert not any(finding.usable for finding in findings)
    assert findings[-1].text == "does not work: RuntimeError: 6 of 6 steps overflowed"


def test_another_backend_is_said_and_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    (finding,) = doctor_probes.float16()
    assert finding == ("Keras backend", "jax; set KERAS_BACKEND=tensorflow", False)
