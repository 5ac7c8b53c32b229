"""The look of a page: one style sheet."""

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
