"""The result of a quickstart as one HTML file that needs nothing else: no script, no font, no address.

It lays out a `Report` and its charts. Invariant: every text from outside is escaped.
"""

import html
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from swift_diloco.charts.style import STYLE
from swift_diloco.charts.svg import Chart, binary_bytes, render
from swift_diloco.core.files.whole_files import write_whole
from swift_diloco.tools.quickstart.result.report import Report


def _tile(value: str, words: str) -> str:
    return f'<div class="card tile"><b>{html.escape(value)}</b><span>{html.escape(words)}</span></div>'


def _tiles(report: Report) -> str:
    tiles = (
        _tile(f"{report.held_out_loss_before:.3f}", "held-out loss before"),
        _tile(f"{report.held_out_loss_after:.3f}", f"held-out loss after, {len(report.islands)} islands"),
        _tile(f"{report.alone.held_out_loss:.3f}", "held-out loss, one island alone"),
        _tile(str(report.outer_steps), f"outer steps, {report.late_contributions} late contributions"),
        _tile(binary_bytes(report.bytes_pushed), f"pushed; {binary_bytes(report.bytes_fetched)} fetched"),
        _tile(f"{report.seconds:.0f} s", "in all"),
    )
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A titled table; cells are HTML already."""
    names = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    table = f"<table><tr>{names}</tr>{body}</table>"
    return f'<div class="card"><h2>{html.escape(title)}</h2><div class="scroll">{table}</div></div>'


def _checks(report: Report) -> str:
    rows = [
        (
            '<span class="good">✓ holds</span>' if check.passed else '<span class="bad">✗ failed</span>',
            html.escape(check.name),
            html.escape(check.detail),
        )
        for check in report.checks
    ]
    return _table("Checks", ("", "what must hold", "what was found"), rows)


def _islands(report: Report) -> str:
    rows = [
        (
            f"island {island.id}",
            f"{island.steps:,}",
            f"{island.tokens:,}",
            f"{island.first_loss:.3f}",
            f"{island.final_loss:.3f}",
            f"<code>{html.escape(report.final_digests.get(str(island.id), 'none'))}</code>",
        )
        for island in report.islands
    ]
    rows.append(("alone", f"{report.alone.steps:,}", "", "", f"{report.alone.final_loss:.3f}", ""))
    head = ("job", "local steps", "tokens merged", "first loss", "final loss", "digest of the export")
    return _table("Jobs", head, rows)


def _moments(report: Report) -> str:
    if not report.moments:
        return ""
    rows = [(f"{moment.time_s:.1f} s", f"{moment.step:,}", html.escape(moment.what)) for moment in report.moments]
    return _table("What was done to the run", ("since the first event", "local step", "what"), rows)


def _commands(report: Report) -> str:
    blocks = "".join(
        f"<h2>{html.escape(name)}</h2><pre>{html.escape(shlex.join(argv))}</pre>"
        for name, argv in report.commands.items()
    )
    return f'<details class="card"><summary>Commands that were run</summary>{blocks}</details>'


def render_page(report: Report, charts: Sequence[Chart]) -> str:
    """The whole page."""
    verdict = '<span class="good">passed</span>' if report.passed else '<span class="bad">failed</span>'
    plots = "".join(f'<div class="card"><h2>{html.escape(chart.title)}</h2>{render(chart)}</div>' for chart in charts)
    words = (
        f"A Qwen3 with {report.parameters:,} parameters, {report.examples:,} questions about the Python standard "
        f"library ({report.held_out_examples:,} held out), {len(report.islands)} islands of one Megatron rank each."
    )
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>swift-diloco quickstart</title><style>{STYLE}</style></head><body><main>"
        f"<h1>swift-diloco quickstart: {verdict}</h1><p>{html.escape(words)}</p>"
        f'{_tiles(report)}<div class="charts">{plots}</div>'
        f"{_checks(report)}{_moments(report)}{_islands(report)}{_commands(report)}"
        "</main></body></html>\n"
    )


def write_page(path: Path, report: Report, charts: Sequence[Chart]) -> None:
    """Write `report.html`."""
    write_whole(path, [render_page(report, charts).encode()])
