"""PURE: what all rows are together: counts, a band of time, and the matrix of who talks to whom.

Rule: they are of the rows that the table shows, and are made anew when those change.
"""

SUMMARY = r"""
const BARS = 60, GROUPS = 30, OTHERS = "others", OUTSIDE = "addresses";
let byPod = false, summaryDue = 0;

function summarize() {
  const found = visible().map(entry => entry.flow);
  const denied = found.reduce((sum, flow) => sum + (isDenied(flow) ? flow.connections : 0), 0);
  const all = found.reduce((sum, flow) => sum + flow.connections, 0);
  at("counts").textContent = `${number(all)} ${all === 1 ? "flow" : "flows"}, ${number(denied)} denied`
    + (data.more ? "; there are more, and these are the newest" : "")
    + (seen > all ? `; ${number(seen)} were seen since the filter was set` : "");
  at("none").hidden = found.length > 0;
  drawBand(found);
  if (!at("matrix").hidden) drawMatrix(found);
}

function summarizeSoon() {
  if (!summaryDue) summaryDue = setTimeout(() => { summaryDue = 0; summarize() }, 1.5 * pace);
}

function drawBand(found) {
  const dated = found.map(flow => [Date.parse(flow.start), flow]).filter(([time]) => !isNaN(time));
  const times = dated.map(([time]) => time);
  const from = times.reduce((a, b) => Math.min(a, b), Infinity), to = times.reduce((a, b) => Math.max(a, b), -Infinity);
  const bars = Array.from({length: BARS}, () => ({allowed: 0, denied: 0}));
  const barOf = time => bars[Math.min(BARS - 1, Math.floor((time - from) / Math.max(1, to - from) * BARS))];
  for (const [time, flow] of dated) barOf(time)[flow.verdict] += flow.connections;
  const most = Math.max(1, ...bars.map(bar => bar.allowed + bar.denied));
  const drawn = bars.flatMap((bar, i) => {
    let top = 40;
    return ["denied", "allowed"].filter(verdict => bar[verdict]).map(verdict => {
      const height = Math.max(1.5, bar[verdict] / most * 38);
      top -= height;
      const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      const placed = {x: i * 10 + 1, y: Math.max(0, top), width: 8, height, class: verdict};
      for (const [name, value] of Object.entries(placed)) made.setAttribute(name, value);
      return made;
    });
  });
  at("band").replaceChildren(...drawn);
  at("oldest").textContent = dated.length ? dayAndClock(new Date(from)) : "";
  at("newest").textContent = dated.length ? dayAndClock(new Date(to)) : "";
}

// -- the matrix: [name, words of the filter] of an end

function groupOf(end) {
  if (byPod) return [nameOf(end), nameOf(end)];
  if (end.kind === "networkset" || end.kind === "network") return [OUTSIDE, ""];
  if (end.namespace) return [end.namespace, end.namespace + "/"];
  return "name" in end ? [`host ${end.name}`, end.name] : [OUTSIDE, ""];
}

function drawMatrix(found) {
  const totals = new Map(), cells = new Map(), groups = new Map([[OTHERS, ""]]);
  for (const flow of found) for (const end of [flow.source, flow.destination]) {
    const [name, word] = groupOf(end);
    groups.set(name, word);
    totals.set(name, (totals.get(name) ?? 0) + flow.connections);
  }
  const largest = [...totals].sort((a, b) => b[1] - a[1]).slice(0, GROUPS).map(([name]) => name);
  const known = new Set(largest), used = {from: new Set(), to: new Set()};
  const place = end => { const [name] = groupOf(end); return known.has(name) ? name : OTHERS };
  for (const flow of found) {
    const from = place(flow.source), to = place(flow.destination), key = JSON.stringify([from, to]);
    const cell = cells.get(key) ?? {allowed: 0, denied: 0};
    cell[flow.verdict] += flow.connections;
    cells.set(key, cell);
    used.from.add(from);
    used.to.add(to);
  }
  const order = [...largest.sort((a, b) => (a === OUTSIDE) - (b === OUTSIDE) || (a < b ? -1 : 1)), OTHERS];
  const columns = order.filter(name => used.to.has(name)), lines = order.filter(name => used.from.has(name));
  const most = Math.max(1, ...[...cells.values()].map(cell => cell.allowed + cell.denied));
  const head = make("tr", {}, make("th", {scope: "col"}, "from \\ to"),
    ...columns.map(name => make("th", {scope: "col"}, make("bdi", {}, shown(name)))));
  const cellOf = (from, to) => {
    const cell = cells.get(JSON.stringify([from, to])), made = make("td", {});
    if (!cell) return made;
    made.style.setProperty("--o", .15 + .85 * (cell.allowed + cell.denied) / most);
    const ends = [["from", groups.get(from)], ["to", groups.get(to)]].filter(([, word]) => word);
    const shares = ends.length ? pick(ends.map(each => option(...each)).join(" "), "") : make("span", {});
    if (cell.allowed) shares.append(number(cell.allowed));
    if (cell.allowed && cell.denied) shares.append(" + ");
    if (cell.denied) shares.append(make("b", {class: "bad"}, `${number(cell.denied)} DENIED`));
    if (ends.length) shares.tabIndex = 0;
    made.append(shares);
    return made;
  };
  const body = lines.map(from => make("tr", {}, make("th", {scope: "row"}, make("bdi", {}, shown(from))),
    ...columns.map(to => cellOf(from, to))));
  at("cells").replaceChildren(make("thead", {}, head), make("tbody", {}, ...body));
  const left = totals.size - GROUPS;
  at("beyond").textContent = left > 0 ? `${number(left)} with fewer flows are together as "others"` : "";
}

function showMatrix(shows) {
  at("matrix").hidden = !shows;
  at("list").hidden = shows;
  at("view").setAttribute("aria-pressed", String(shows));
  summarize();
}

at("view").addEventListener("click", () => showMatrix(at("matrix").hidden));
at("group").addEventListener("click", () => {
  byPod = !byPod;
  at("group").setAttribute("aria-pressed", String(byPod));
  summarize();
});
"""
