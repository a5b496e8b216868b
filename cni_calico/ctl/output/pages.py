"""PURE: how every page of calicoctl looks.

Rule: a page is light or dark as the reader's system is, and loads nothing; every colour is a variable.
"""

STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --text: #1c2530; --soft: #5d6b7a; --line: #dde2e8;
  --accent: #2563eb; --bad: #c2410c; --bar: #e6eaef; --s: 62%; --l: 46%;
  --shadow: 0 1px 2px #0f172a14, 0 4px 16px #0f172a0d }
@media (prefers-color-scheme: dark) { :root { --back: #0f141a; --card: #171e26; --text: #e6ebf1; --soft: #94a3b3;
  --line: #2a343f; --accent: #7aa5ff; --bad: #fb923c; --bar: #26303b; --s: 58%; --l: 60%; --shadow: none } }
* { box-sizing: border-box }
body { margin: 0; background: var(--back); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif }
main { max-width: 1180px; margin: 0 auto; padding: 36px 28px 64px }
h1 { font-size: 26px; margin: 0; letter-spacing: -.01em }
h2 { font-size: 17px; margin: 0 0 14px }
h3 { font-size: 15px; margin: 0 }
.soft { color: var(--soft) }
.bad { color: var(--bad) }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px }
section { background: var(--card); border: 1px solid var(--line); border-radius: 14px; box-shadow: var(--shadow);
  padding: 22px 24px; margin-top: 22px }
.row { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: baseline }
.tag { border: 1px solid var(--line); border-radius: 99px; padding: 0 9px; font-size: 12.5px; color: var(--soft) }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums }
th { text-align: left; font-size: 12.5px; color: var(--soft); font-weight: 600; position: sticky; top: 0;
  background: var(--card) }
th, td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top }
tr:last-child td { border-bottom: 0 }
td.n, th.n { text-align: right }
.scroll { overflow: auto; max-height: 560px }
input { font: inherit; color: inherit; background: var(--back); border: 1px solid var(--line); border-radius: 9px;
  padding: 6px 12px }
footer { margin-top: 26px; font-size: 13px; color: var(--soft) }
"""
