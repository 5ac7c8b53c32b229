"""The result of a quickstart as one HTML file that needs nothing else: no script, no font, no address.

It lays out a `Report` and its charts. Invariant: every text from outside is escaped.
"""

import html
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from swift_diloco.quickstart.report import Report
from swift_diloco.quickstart.svg import Chart, binary_bytes, render

STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --card: #ffffff; --ink: #1a1a19; --muted: #6b6a66; --grid: #e6e5e1;
  --good: #1a7f37; --bad: #c4372b;
  --series-0: #2a6fd6; --series-1: #d9622b; --series-2: #7d7c77; --series-3: #138a63;
  --series-4: #8d4bbb; --series-5: #b58900; --series-6: #c43d7c; --series-7: #2997a8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #161615; --card: #1f1f1e; --ink: #f1f0ec; --muted: #a3a29c; --grid: #34342f;
    --good: #4cc06c; --bad: #f0766a;
    --series-0: #6aa5f5; --series-1: #f0935f; --series-2: #a9a8a2; --series-3: #47c295;
    --series-4: #be8ae6; --series-5: #dcb44a; --series-6: #ee7fb0; --series-7: #63c6d6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 15px; margin: 0 0 8px; }
p { color: var(--muted); margin: 4px 0 20px; }
.tiles, .charts { display: grid; gap: 14px; margin-bottom: 14px; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.charts { grid-template-columns: repeat(auto-fit, minmax(min(480px, 100%), 1fr)); }
.card + .card { margin-top: 14px; } .tiles .card, .charts .card { margin-top: 0; }
.card { background: var(--card); border: 1px solid var(--grid); border-radius: 10px; padding: 14px 16px; min-width: 0; }
.tile b { display: block; font-size: 23px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: 13px; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
.grid { stroke: var(--grid); } .tick, .label { fill: var(--muted); } .legend { fill: var(--ink); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; } .faint { fill: none; stroke-width: 1; opacity: .22; }
.mark { stroke: var(--bad); stroke-width: 1; stroke-dasharray: 4 3; } .marked { fill: var(--bad); font-size: 11px; }
.hit { fill: transparent; } .hit:hover { fill: var(--ink); fill-opacity: .35; }
.dot { opacity: .8; } .bar { stroke: var(--card); stroke-width: 1; }
.dot:hover, .bar:hover { opacity: 1; stroke: var(--ink); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { color: var(--muted); font-weight: 500; font-size: 13px; } tr:last-child td { border-bottom: 0; }
.good { color: var(--good); } .bad { color: var(--bad); } .good, .bad { font-weight: 600; }
code, pre { font: 12px/1.5 ui-monospace, monospace; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 4px 0 14px; }
"""


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
    path.write_text(render_page(report, charts), encoding="utf-8")
