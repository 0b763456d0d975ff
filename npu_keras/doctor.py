# SPDX-License-Identifier: Apache-2.0
"""`python -m npu_keras doctor`: what can be used here, as plain text for a bug report."""

import argparse
import os
import platform
from collections.abc import Callable, Iterator, Sequence

from npu_keras import cluster, doctor_probes
from npu_keras.doctor_probes import Finding

_MODULES = ("tensorflow", "keras", "tf_keras", "numpy", "mpi4py", "matplotlib")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints versions, devices, engines and ranks, and tries a step in float16.

    Args:
        argv: arguments after `doctor`. Defaults to those of the process.

    Returns:
        The exit status: 0 if a model can train here, in float16 on some device and with some
        engine, else 1.
    """
    argparse.ArgumentParser(
        prog="python -m npu_keras doctor",
        description="Say what can be used here: versions, devices, float16, ranks and engines. "
        "Of the environment it shows the variables that name ranks, and nothing else. "
        "The exit status is 0 if something usable was found.",
    ).parse_args(argv)
    # TensorFlow's remarks on the machine would stand between the lines.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _show("Versions", versions())
    missing = []
    for title, probe in (
        ("Devices", doctor_probes.devices),
        ("Training step", doctor_probes.float16),
        ("Ranks", _ranks),
        ("Engines", doctor_probes.engines),
    ):
        findings = list(_guarded(probe))
        _show(title, findings)
        if not any(finding.usable for finding in findings):
            missing.append(title)
    print(f"\nResult: {'not ' if missing else ''}usable")
    for title in missing:
        print(f"  nothing usable under {title!r}")
    return 1 if missing else 0


def versions() -> list[Finding]:
    """Returns the versions of what matters, without importing it."""
    found = [
        Finding("Python", f"{platform.python_version()} ({platform.python_implementation()})"),
        Finding("system", platform.platform()),
    ]
    return found + [doctor_probes.version(name) for name in ("npu_keras", *_MODULES)]


def _ranks() -> Iterator[Finding]:
    names = [name for name in (*cluster.VARIABLES, cluster.STEPS) if name in os.environ]
    for name in names:
        yield Finding(name, repr(os.environ[name]), usable=False)
    if not names:
        yield Finding("environment", "no variable names a rank", usable=False)
    place = cluster.find()
    source = "one process" if place.source == "single" else f"as {place.source} says"
    yield Finding("this process", f"rank {place.rank} of {place.size}, {source}")


def _guarded(probe: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """What a probe found; an error is a finding, too."""
    try:
        yield from probe()
    except Exception as error:  # of a broken installation, whatever it may be
        yield Finding("error", doctor_probes.one_line(error), usable=False)


def _show(title: str, findings: Sequence[Finding]) -> None:
    print(f"\n{title}")
    for finding in findings:
        print(f"  {finding.name:<14}{finding.text}", flush=True)
