# SPDX-License-Identifier: Apache-2.0
"""The report as one page of HTML that loads nothing and runs nothing."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from npu_keras._version import __version__
from npu_keras.run_facts import RunFacts, Suspect
from npu_keras.verdict import FORWARD, HEALTHY, SETTLING, STUCK, TOO_HIGH, UNKNOWN, Verdict
from npu_keras.words import name_text, share_text

MOST_VARIABLES = 20
_NAME = 400  # characters of a name

# Colour of the frame and a sign, so that colour alone says nothing.
_LOOKS = {
    HEALTHY: ("#00785a", "✓"),
    SETTLING: ("#0072b2", "↘"),
    TOO_HIGH: ("#b84e00", "▲"),
    STUCK: ("#b84e00", "▼"),
    FORWARD: ("#b00020", "✗"),
    UNKNOWN: ("#5c5c5c", "?"),
}
_STYLE = """
:root { color-scheme: light }
body { margin: 0 auto; max-width: 50rem; padding: 1rem; background: #fff; color: #1a1a1a;
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.05rem; font-weight: normal; color: #5c5c5c; overflow-wrap: anywhere }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
.verdict { border-left: .4rem solid var(--look); padding: .5rem 1rem; background: #f6f6f6 }
.verdict strong { display: block; font-size: 1.5rem; color: var(--look) }
.verdict p { margin: .25rem 0 }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0;
  border-bottom: 1px solid #e6e6e6; font-weight: normal }
thead th { color: #5c5c5c; font-size: .85rem }
.numbers th { color: #5c5c5c; width: 45% }
.number { text-align: right; white-space: nowrap }
.name { font-family: ui-monospace, monospace; font-size: .85rem; overflow-wrap: anywhere }
.figure { overflow-x: auto; margin: 1rem 0 }
.figure img { width: 100%; min-width: 36rem; height: auto; display: block }
.notes, footer { color: #5c5c5c; font-size: .9rem }
li { margin: .4rem 0; overflow-wrap: anywhere }
@media (max-width: 34rem) {
  .variables tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid #e6e6e6 }
  .variables td, .variables th { border: 0 }
  .variables tr > :first-child { flex: 0 0 100% }
}
@media print { .figure img { min-width: 0 } }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class Figure(NamedTuple):
    """A picture of the page.

    Attributes:
        title: what it shows.
        address: a `data:` address that holds it.
    """

    title: str
    address: str


class Report(NamedTuple):
    """What a report says.

    Attributes:
        name: of the file of events.
        verdict: the judgement.
        facts: the numbers.
        figures: the pictures; none without matplotlib.
        notes: what the reader has to know about what is missing.
    """

    name: str
    verdict: Verdict
    facts: RunFacts
    figures: Sequence[Figure]
    notes: Sequence[str]


def page(report: Report) -> str:
    """Returns the page. Whatever comes from the file is escaped, and no script may run.

    Args:
        report: what to say.
    """
    name = escape(name_text(report.name))
    colour, sign = _LOOKS[report.verdict.state]
    state = report.verdict.state
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(state)}: loss scale of {name}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>Loss scale of {name}</h1>",
        f'<div class="verdict" style="--look: {colour}">'
        f"<strong>{sign} {escape(state[0].upper() + state[1:])}</strong>"
        f"<p>{escape(report.verdict.reason)}</p></div>",
        *(f'<p class="notes">{escape(note)}</p>' for note in report.notes),
        f'<h2>Numbers</h2><table class="numbers"><tbody>{_numbers(report.facts)}</tbody></table>',
        *_figures(report.figures),
        *_variables(report.facts),
        f"<h2>What to try</h2><ul>{_items(report.verdict.advice)}</ul>",
        f"<footer><p>Written by npu_keras {escape(__version__)}.</p></footer>",
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _numbers(facts: RunFacts) -> str:
    return "\n".join(
        f'<tr><th scope="row">{escape(what)}</th><td>{escape(number)}</td></tr>'
        for what, number in facts.rows()
    )


def _figures(figures: Iterable[Figure]) -> list[str]:
    return [
        f"<h2>{escape(title)}</h2>"
        f'<div class="figure"><img alt="{escape(title)}" src="{escape(address)}"></div>'
        for title, address in figures
    ]


def _variables(facts: RunFacts) -> list[str]:
    suspects = facts.suspects()
    if not suspects:
        return []
    head = "".join(
        f'<th scope="col"{kind}>{escape(what)}</th>'
        for what, kind in (
            ("variable", ""), ("skipped steps", ' class="number"'),
            ("alone", ' class="number"'),
            ("first and last", ' class="number"'),
        )
    )  # fmt: skip
    rows = "\n".join(_row(one, len(facts.skips)) for one in suspects[:MOST_VARIABLES])
    more = len(suspects) - MOST_VARIABLES
    rest = [f'<p class="notes">And {more:,} more variables.</p>'] if more > 0 else []
    return [
        "<h2>Worst variables</h2>",
        '<p class="notes">A step counts for its first variable that overflowed, in the order of '
        "the model. An overflow goes on to all layers before the one where it begins; a variable "
        "that overflows alone is where it begins.</p>",
        f'<table class="variables"><thead><tr>{head}</tr></thead><tbody>',
        f"{rows}</tbody></table>",
        *rest,
    ]


def _row(suspect: Suspect, skipped: int) -> str:
    share = share_text(suspect.steps, skipped)
    last = "" if suspect.first == suspect.last else f" &ndash; {suspect.last:,}"
    return (
        f'<tr><td class="name">{escape(name_text(suspect.variable, _NAME))}</td>'
        f'<td class="number">{suspect.steps:,} ({escape(share)})</td>'
        f'<td class="number">{suspect.alone:,}</td>'
        f'<td class="number">{suspect.first:,}{last}</td></tr>'
    )


def _items(lines: Iterable[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)
