"""PURE: the style and the script of the picture's page.

Rule: the page is light or dark as the reader's system is; every colour is a variable, and nothing is loaded from
anywhere.
"""

from cni_calico.ctl.output.pages import STYLE as EVERY_PAGES

STYLE = (
    EVERY_PAGES
    + """\
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 14px; margin-top: 24px }
.cards div { background: var(--card); border: 1px solid var(--line); border-radius: 14px;
  box-shadow: var(--shadow); padding: 14px 18px }
.cards b { display: block; font-size: 25px; font-weight: 650; line-height: 1.25;
  font-variant-numeric: tabular-nums }
.warning { border-left: 4px solid var(--bad) }
.pool + .pool { border-top: 1px solid var(--line); margin-top: 20px; padding-top: 20px }
.bar { height: 10px; background: var(--bar); border-radius: 6px; overflow: hidden; margin: 10px 0 4px }
.bar i { display: block; height: 100%; background: var(--accent); border-radius: 6px }
.bar.full i { background: var(--bad) }
.blocks { display: flex; flex-wrap: wrap; gap: 3px; margin-top: 12px }
.blocks i { width: 14px; height: 14px; border-radius: 3px; background: hsl(var(--h) var(--s) var(--l) / var(--o));
  border: 1px solid hsl(var(--h) var(--s) var(--l)) }
.blocks i.free { background: none; border: 1px dashed var(--soft) }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 9px;
  background: hsl(var(--h) var(--s) var(--l)) }
input { width: 260px; margin-bottom: 12px }
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
@media print { section { break-inside: avoid; box-shadow: none } .scroll { max-height: none } }
"""
)
SCRIPT = """
const field = document.querySelector("input");
if (field) field.addEventListener("input", () => {
  const wanted = field.value.toLowerCase();
  for (const row of document.querySelectorAll("tbody tr")) row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
"""
