"""PURE: the style and the script of the picture's page.

Rule: the page is light or dark as the reader's system is; every colour is a variable, and nothing is loaded from
anywhere.
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
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; margin-top: 24px }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 14px;
  box-shadow: var(--shadow); padding: 14px 18px }
.cards b { display: block; font-size: 25px; font-weight: 650; line-height: 1.25;
  font-variant-numeric: tabular-nums }
.warning { border-left: 4px solid var(--bad) }
.pool + .pool { border-top: 1px solid var(--line); margin-top: 20px; padding-top: 20px }
.row { display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: baseline }
.tag { border: 1px solid var(--line); border-radius: 99px; padding: 0 9px; font-size: 12.5px; color: var(--soft) }
.bar { height: 10px; background: var(--bar); border-radius: 6px; overflow: hidden; margin: 10px 0 4px }
.bar i { display: block; height: 100%; background: var(--accent); border-radius: 6px }
.bar.full i { background: var(--bad) }
.blocks { display: flex; flex-wrap: wrap; gap: 3px; margin-top: 12px }
.blocks i { width: 14px; height: 14px; border-radius: 3px; background: hsl(var(--h) var(--s) var(--l) / var(--o));
  border: 1px solid hsl(var(--h) var(--s) var(--l)) }
.blocks i.free { background: none; border: 1px dashed var(--soft) }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 9px;
  background: hsl(var(--h) var(--s) var(--l)) }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums }
th { text-align: left; font-size: 12.5px; color: var(--soft); font-weight: 600; position: sticky; top: 0;
  background: var(--card) }
th, td { padding: 7px 14px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top }
tr:last-child td { border-bottom: 0 }
td.n, th.n { text-align: right }
.scroll { overflow: auto; max-height: 560px }
input { font: inherit; color: inherit; background: var(--back); border: 1px solid var(--line); border-radius: 9px;
  padding: 6px 12px; width: 260px; margin-bottom: 12px }
svg { display: block; width: 100%; height: auto }
svg text { fill: var(--text); font-size: 13px; paint-order: stroke; stroke: var(--card); stroke-width: 4px;
  stroke-linejoin: round }
svg .mesh { stroke: var(--soft); stroke-opacity: .28 }
svg .session { stroke: var(--accent); stroke-width: 1.6; stroke-opacity: .7 }
svg .many { stroke-width: 5; stroke-linecap: round }
svg .ring { fill: var(--soft); fill-opacity: .09; stroke: var(--line) }
svg .node { fill: hsl(var(--h) var(--s) var(--l)); stroke: var(--card); stroke-width: 1.5 }
svg .outside { fill: var(--card); stroke: var(--accent); stroke-width: 2 }
svg .reflector { stroke: var(--text); stroke-width: 2.5 }
footer { margin-top: 26px; font-size: 13px; color: var(--soft) }
@media print { section { break-inside: avoid; box-shadow: none } .scroll { max-height: none } }
"""
SCRIPT = """
const field = document.querySelector("input");
if (field) field.addEventListener("input", () => {
  const wanted = field.value.toLowerCase();
  for (const row of document.querySelectorAll("tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
"""
