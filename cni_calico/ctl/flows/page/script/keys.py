"""PURE: filter, keyboard, and how the page begins.

Rule: whatever the mouse can do the keyboard can; a key that is typed into a field means itself.
"""

KEYS = r"""
const LONGEST = 6000;  // of a filter in an address

function apply(text) {
  at("words").value = words = text.trim();
  complain("");
  if (data.live) {
    reset();
    summarize();
    if (encodeURIComponent(words).length < LONGEST) connect();
    else complain("filter: it is too long");
    return;
  }
  let conditions = [];
  try {
    conditions = parseFilter(words);
  } catch (error) {
    complain(error.message);
    return;
  }
  for (const entry of flows.values()) {
    toggle(entry, false);
    entry.row.hidden = !meets(entry.flow, conditions);
  }
  if (current?.row.hidden) choose(null);
  summarize();
}

at("filter").addEventListener("submit", event => {
  event.preventDefault();
  apply(at("words").value);
  at("words").blur();
});
at("clear").addEventListener("click", () => apply(""));
at("pause").addEventListener("click", () => pause(!paused));
at("help").addEventListener("click", () => at("keys").showModal());
document.addEventListener("click", event => {
  const picked = event.target.closest(".pick");
  if (!picked) return;
  showMatrix(false);
  const text = at("words").value.trim();
  if (!` ${text} `.includes(` ${picked.dataset.words} `)) apply(`${text} ${picked.dataset.words}`);
});

const move = entry => { if (entry) choose(entry) };
const ends = which => visible().at(data.live === which ? -1 : 0);  // a live page has the newest last
const ACTIONS = {
  "/": () => { at("words").focus(); at("words").select() },
  x: () => apply(""),
  j: () => move(neighbour(1)),
  k: () => move(neighbour(-1)),
  g: () => move(ends(true)),
  G: () => move(ends(false)),
  Enter: () => current && toggle(current),
  Escape: () => current?.detail ? toggle(current, false) : choose(null),
  c: () => copyCommand(current),
  e: () => judge(current),
  m: () => showMatrix(at("matrix").hidden),
  p: () => data.live && pause(!paused),
  "?": () => at("keys").showModal(),
};

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey || at("keys").open) return;
  const typing = event.target === at("words"), pressing = event.target.closest("button");
  if (typing && event.key === "Escape") at("words").blur();
  if (typing || (pressing && event.key === "Enter")) return;
  const arrows = current ? {ArrowDown: "j", ArrowUp: "k"} : {};
  const action = ACTIONS[arrows[event.key] ?? event.key];
  if (!action || !at("matrix").hidden && "jkgGce".includes(event.key)) return;
  event.preventDefault();
  action();
});

// -- the beginning

at("words").value = data.filter;
if (data.live) {
  summarize();
  connect();
} else {
  at("pause").hidden = true;
  at("node").textContent = data.filter ? `calicoctl flows ${shown(data.filter)}` : "";
  setState(`made ${dayAndClock(new Date(data.made))}`);
  data.said.forEach(say);
  data.flows.forEach((flow, i) => {
    const row = rowOf(flow, String(i));
    flows.set(String(i), {flow, row, detail: null});
    rows.append(row);
  });
  at("words").value = "";
  summarize();
}
"""
