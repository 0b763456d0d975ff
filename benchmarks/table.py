# SPDX-License-Identifier: Apache-2.0
"""Results as a Markdown table and as JSON, with what they were measured on."""

import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from benchmarks.harness import Row, Timed

PACKAGES = ("npu-keras", "tensorflow", "keras", "tf-keras", "numpy")


def machine() -> dict[str, Any]:
    """What the figures depend on: versions, cores and the load of the last minute."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "python": platform.python_version(),
        **versions,
        "system": platform.system(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
    }


def markdown(rows: Sequence[Row], on: dict[str, Any]) -> str:
    """Returns the table."""
    facts = ", ".join(f"{name} {value}" for name, value in on.items())
    lines = [
        f"Measured on {facts}.",
        "",
        "| what | way | median (quartiles) | ratio to the first | target | met |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *(line for row in rows for line in row_lines(row))])


def row_lines(row: Row) -> list[str]:
    """Returns the lines of one comparison."""
    absent = [f"| {row.name} | {reason} | not measured |  |  |  |" for reason in row.absent]
    return [_line(row, way) for way in row.timed] + absent


def _line(row: Row, way: Timed) -> str:
    factor = 1e3 if row.unit == "ms" else 1.0
    low, middle, high = (f"{factor * value:.4g}" for value in way.quartiles)
    ratio, target = row.ratio(way), row.target.get(way.name)
    wanted = "" if target is None else f"<= {target:g}"
    met = "" if target is None else "yes" if ratio <= target else "no"
    shown = "1" if way is row.timed[0] else f"{ratio:.3f}"
    figures = f"{middle} {row.unit} ({low} to {high})"
    return f"| {row.name} | {way.name} | {figures} | {shown} | {wanted} | {met} |"


def as_json(rows: Sequence[Row], on: dict[str, Any]) -> str:
    """Returns every time that was taken."""
    return json.dumps(
        {
            "machine": on,
            "rows": [
                {
                    "name": row.name,
                    "seconds": {way.name: way.seconds for way in row.timed},
                    "ratios": {way.name: row.ratio(way) for way in row.timed},
                    "target": row.target,
                    "absent": list(row.absent),
                }
                for row in rows
            ],
        },
        indent=1,
    )
