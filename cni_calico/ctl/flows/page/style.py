"""PURE: the style of the page of flows.

Rule: as ctl.output.pages, whose style it adds to. Denied is a word and not a colour alone; names are isolated, so that
one that is written from right to left does not turn its neighbours.
"""

from cni_calico.ctl.output.pages import STYLE as EVERY_PAGES

STYLE = (
    EVERY_PAGES
    + """\
main { max-width: 1500px; padding-top: 24px }
header { align-items: center }
.buttons { margin-left: auto; display: flex; gap: 8px }
button { font: inherit; font-size: 13.5px; color: inherit; background: var(--card); border: 1px solid var(--line);
  border-radius: 9px; padding: 5px 12px; cursor: pointer }
button:hover { border-color: var(--accent) }
button[aria-pressed=true] { border-color: var(--accent); color: var(--accent) }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px }
#state.live { color: var(--accent); border-color: var(--accent) }
#state.lost { color: var(--bad); border-color: var(--bad) }
#filter { display: flex; gap: 8px; margin-top: 14px }
#words { flex: 1; min-width: 0; background: var(--card) }
#wrong { margin: 8px 0 0 }
#notices div { display: flex; gap: 12px; align-items: baseline; background: var(--card); border: 1px solid var(--line);
  border-left: 4px solid var(--bad); border-radius: 9px; padding: 7px 14px; margin-top: 10px }
#notices button { margin-left: auto; padding: 0 8px }
section { padding: 14px 18px; margin-top: 14px }
#band { display: block; width: 100%; height: 44px; margin-top: 6px }
#band .allowed { fill: var(--soft); fill-opacity: .45 }
#band .denied { fill: var(--bad) }
#counts, .ends { min-height: 1.5em }
.ends { justify-content: space-between; font-size: 12.5px }
#list { padding: 0 }
#list .scroll { max-height: max(320px, calc(100vh - 330px)); border-radius: 14px }
#list table { table-layout: fixed; min-width: 860px; font-size: 13.5px }
#list th, #list td { padding: 5px 8px; overflow-wrap: anywhere }
#list th { padding-top: 9px; z-index: 1 }
th.time { width: 112px } th.port { width: 106px } th.verdict { width: 84px } th.by { width: 34% }
#rows > tr { cursor: pointer }
#rows > tr > td:first-child { border-left: 3px solid transparent; white-space: nowrap }
#rows > tr.denied > td:first-child { border-left-color: var(--bad) }
#list table { border-collapse: separate; border-spacing: 0 }
#rows > tr.current > td { background: var(--back) }
#rows > tr:focus { outline: none }
#rows > tr.current > td { box-shadow: inset 0 1px var(--accent), inset 0 -1px var(--accent) }
tr.denied .verdict { color: var(--bad); font-weight: 650 }
#list th:first-child { border-left: 3px solid transparent }
#none { padding: 2px 18px 14px }
bdi { unicode-bidi: isolate }
.pick { border: 0; background: none; padding: 0; border-radius: 3px; text-align: left; overflow-wrap: anywhere }
.pick:hover { text-decoration: underline dotted }
#rows > tr.detail { cursor: auto }
.detail > td { background: var(--back) }
.sides { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 10px 26px; margin: 8px 0 }
.sides ol { list-style: none; margin: 8px 0 0; padding: 0; display: flex; flex-wrap: wrap; gap: 8px }
.sides li { background: var(--card); border: 1px solid var(--line); border-left: 4px solid var(--accent);
  border-radius: 8px; padding: 5px 11px }
.sides li.deny { border-left-color: var(--bad) }
.sides li.pass { border-left-color: var(--soft) }
.sides li b { display: block; font-size: 12.5px }
.sides p { margin: 0; overflow-wrap: anywhere } .now { border-top: 1px solid var(--line); padding: 8px 0 }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(230px, 1fr)); gap: 2px 26px; margin: 10px 0 }
.facts div { display: flex; gap: 10px }
.facts dt { color: var(--soft); min-width: 74px } .facts dd { margin: 0; overflow-wrap: anywhere }
.command { display: flex; gap: 10px; align-items: baseline; margin-bottom: 8px }
.command code { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 5px 11px;
  overflow-wrap: anywhere }
#matrix .row { align-items: center; margin-bottom: 10px } #matrix h2 { margin: 0 }
#cells { width: auto; font-size: 13.5px }
#cells th, #cells td { padding: 4px 8px; border: 1px solid var(--line); overflow-wrap: anywhere; max-width: 150px }
#cells tr:last-child td { border-bottom: 1px solid var(--line) }
#cells thead th { vertical-align: bottom } #cells tbody th { position: static }
#cells td { text-align: right; min-width: 64px;
  background: color-mix(in srgb, var(--accent) calc(var(--o, 0) * 9%), var(--card)) }
#cells .pick { text-align: right }
dialog { color: inherit; background: var(--card); border: 1px solid var(--line); border-radius: 14px;
  padding: 20px 26px }
dialog::backdrop { background: #0f172a66 }
dl { margin: 0 } dialog dl { display: grid; grid-template-columns: auto 1fr; gap: 6px 16px; margin-bottom: 16px }
dialog dd { margin: 0 }
kbd { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; border: 1px solid var(--line); border-radius: 5px;
  padding: 0 6px }
[hidden] { display: none !important }
@media (max-width: 700px) { main { padding: 16px 12px 40px } }
@media print { .buttons, #filter { display: none } .scroll { max-height: none !important } }
"""
)
