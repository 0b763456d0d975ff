# SPDX-License-Identifier: Apache-2.0
"""`python -m npu_keras report`: judges a run by its file of events, and writes a page about it."""

import argparse
import base64
import io
import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path

from npu_keras.event_log import read_events
from npu_keras.events import Event
from npu_keras.plot_sources import damage_text
from npu_keras.report_page import Figure, Report, page
from npu_keras.run_facts import RunFacts
from npu_keras.verdict import judge
from npu_keras.words import name_text, share_text

WITHOUT_FIGURES = (
    "Figures need matplotlib. Install it with pip install 'npu-keras[plot]', and write the report "
    "again."
)
_WIDTH = 80
_WORST = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdict and the numbers of a run, and writes them with figures to a page.

    Args:
        argv: arguments after `report`. Defaults to those of the process.

    Returns:
        The exit status: 0, or 1 if a file cannot be read or written.

    Example:

    >>> main(["events.jsonl", "-o", "report.html"])  # doctest: +SKIP
    """
    options = _parser().parse_args(argv)
    try:
        report = make(options.events)
        if options.output.exists() and options.output.samefile(options.events):
            raise OSError("the page would replace the file of events")
        options.output.write_text(page(report), encoding="utf-8")
    except OSError as error:
        name = name_text(str(error.filename or options.events))
        print(f"{name}: {error.strerror or error}", file=sys.stderr)
        return 1
    except ValueError as error:
        _print(str(error))
        return 1
    _print(f"{text(report)}\n\nWritten: {options.output}")
    return 0


def make(path: str | Path) -> Report:
    """Reads a file of events and judges the run.

    Args:
        path: a file that `LossScaleLogger(jsonl=...)` wrote; damaged lines are left out and named.

    Returns:
        A `Report`, with figures if matplotlib is installed.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if it has lines, but none that is an event.
    """
    events, damaged = read_events(path)
    if damaged and not events:
        raise ValueError(
            f"{name_text(os.path.basename(path))}: no line of it is an event. Give the file that "
            "`LossScaleLogger(jsonl=...)` wrote."
        )
    figures = _figures(events)
    notes = [damage_text(damaged)] if damaged else []
    notes += [] if figures else [WITHOUT_FIGURES]
    return Report(os.path.basename(path), judge(events), RunFacts(events), figures, notes)


def text(report: Report) -> str:
    """Returns the report for a terminal: verdict, numbers, worst variables, what to try.

    Args:
        report: what is known.
    """
    verdict, facts = report.verdict, report.facts
    lines = [f"{name_text(report.name)}: {verdict.state.upper()}", _filled(verdict.reason), ""]
    lines += [f"{what:<28}{number}" for what, number in facts.rows()]
    suspects = facts.suspects()
    if suspects:
        lines += ["", "First to overflow, in the order of the model:"]
        for one in suspects[:_WORST]:
            share = share_text(one.steps, len(facts.skips))
            lines.append(f"{one.steps:>8,} ({share})  {name_text(one.variable)}")
        if len(suspects) > _WORST:
            lines.append(f"{'':>8} and {len(suspects) - _WORST:,} more variables")
    lines += ["", "What to try:", *(_filled(advice, "- ") for advice in verdict.advice)]
    if report.notes:
        lines += ["", *(_filled(note) for note in report.notes)]
    return "\n".join(lines)


def _filled(text: str, bullet: str = "") -> str:
    return textwrap.fill(
        text, _WIDTH, initial_indent=bullet, subsequent_indent=" " * len(bullet),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _figures(events: Sequence[Event]) -> list[Figure]:
    """Figures as addresses that hold the whole picture; none without matplotlib."""
    from npu_keras.plotting import plot_loss_scale, plot_overflow_by_variable

    try:
        from matplotlib import rc_context
    except ImportError:
        return []
    drawn = [("The loss scale, step by step", plot_loss_scale(events))]
    if any(event.skipped for event in events):
        drawn.append(("Variables that overflowed", plot_overflow_by_variable(events)))
    figures = []
    for title, figure in drawn:
        file = io.BytesIO()
        with warnings.catch_warnings(), rc_context({"svg.hashsalt": "npu_keras"}):
            # Of characters that the font lacks; the table has them.
            warnings.simplefilter("ignore", UserWarning)
            figure.savefig(file, format="svg", metadata={"Date": None})
        data = base64.b64encode(file.getvalue()).decode()
        figures.append(Figure(title, f"data:image/svg+xml;base64,{data}"))
    return figures


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m npu_keras report",
        description="Judge the loss scaling of a run by its events: the verdict, the numbers, "
        "figures, the worst variables and what to try, on one page that needs no network.",
    )
    parser.add_argument(
        "events", type=Path, help="file written by LossScaleLogger(jsonl=...), JSON Lines"
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, default=Path("report.html"),
        help="the page (default: %(default)s)",
    )  # fmt: skip
    return parser
