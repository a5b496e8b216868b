"""PURE: what stands on the page of flows before the script fills it.

Rule: no text here is of a flow, and everything can be reached with the keyboard.
"""

_KEYS = (
    ("/", "go to the filter; Enter applies it, Esc leaves it"),
    ("x", "remove the filter"),
    ("j k", "next and previous flow (also the arrows)"),
    ("g G", "first and last flow"),
    ("Enter", "show or hide what decided about a flow"),
    ("c", "copy the command that explains it"),
    ("e", "explain: what would be decided now"),
    ("m", "matrix or table"),
    ("p", "pause, go on"),
    ("Esc", "close"),
    ("?", "this list"),
)
_HEADINGS = (("time", "Time"), ("from", "From"), ("to", "To"), ("port", "Port"), ("verdict", "Verdict"), ("by", "By"))
_LISTED = "".join(f"<dt><kbd>{key.replace(' ', '</kbd> <kbd>')}</kbd></dt><dd>{what}</dd>" for key, what in _KEYS)
_COLUMNS = "".join(f'<th scope="col" class="{name}">{text}</th>' for name, text in _HEADINGS)

BODY = f"""<main>
<header class="row"><h1>Flows</h1><span id="state" class="tag" role="status"></span><span id="node" class="soft"></span>
<span class="buttons"><button type="button" id="pause" aria-pressed="false">Pause</button>
<button type="button" id="view" aria-pressed="false">Matrix</button>
<button type="button" id="help" aria-label="Keys">?</button></span></header>
<form id="filter" role="search"><input id="words" class="mono" autocomplete="off" spellcheck="false" maxlength="2000"
aria-label="Filter" placeholder="--from shop/web --not --verdict allowed --port 5432">
<button type="submit">Filter</button><button type="button" id="clear">Clear</button></form>
<p id="wrong" class="bad" role="alert" hidden></p>
<div id="notices" role="status"></div>
<section class="over"><div id="counts" class="soft"></div>
<svg id="band" role="img" aria-label="Flows over time, denied ones in colour" viewBox="0 0 600 40"
preserveAspectRatio="none"></svg>
<div class="row ends soft"><span id="oldest"></span><span id="newest"></span></div></section>
<section id="list"><div class="scroll" tabindex="-1"><table><thead><tr>{_COLUMNS}</tr></thead>
<tbody id="rows"></tbody></table>
<p id="none" class="soft">No flow.</p></div></section>
<section id="matrix" hidden><div class="row"><h2>Who talks to whom</h2>
<button type="button" id="group" aria-pressed="false">By pod</button><span id="beyond" class="soft"></span></div>
<div class="scroll"><table id="cells"></table></div></section>
<dialog id="keys" aria-label="Keys"><h2>Keys</h2><dl>{_LISTED}</dl>
<form method="dialog"><button>Close</button></form></dialog>
</main>"""
