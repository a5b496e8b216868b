"""PURE: the table of flows, and what is behind a row.

Rule: a flow has one row, the newest is on top, and there are never more than MOST.
"""

TABLE = r"""
const flows = new Map();  // key -> {flow, row, detail}, the oldest first
const rows = at("rows");
let current = null, left = 0;  // left: when the newest began of those that left the table, in seconds

function keyOf(flow) {
  return JSON.stringify([flow.start, flow.node, whereOf(flow), flow.source.ip, flow.source.port, flow.destination.ip]);
}

function rowOf(flow, key) {
  const row = make("tr", {tabindex: "-1", "aria-expanded": "false"});
  row.dataset.key = key;
  fill(row, flow);
  return row;
}

function fill(row, flow) {
  const from = nameOf(flow.source), to = nameOf(flow.destination), port = flow.destination.port;
  const where = port === undefined ? option("protocol", flow.protocol) :
    `${option("protocol", flow.protocol)} ${option("port", String(port))}`;
  row.classList.add("flow");
  row.classList.toggle("denied", isDenied(flow));
  row.replaceChildren(
    make("td", {title: shown(flow.start)}, clockOf(flow.connections === 1 ? flow.start : flow.last)),
    make("td", {}, pick(option("from", from), from)),
    make("td", {}, pick(option("to", to), to)),
    make("td", {}, pick(where, whereOf(flow))),
    make("td", {class: "verdict"}, verdictOf(flow)),
    make("td", {class: "by"}, make("bdi", {}, shown(byOf(flow)))));
}

// -- what is behind a row

function stepOf(one) {
  const action = one.action === "Deny" ? "DENIED" : one.action === "Allow" ? "allowed" : shown(one.action);
  const tier = one.tier ? `tier ${one.tier}` : one.kind === "Profile" ? "profiles" : "";
  const what = one.reason ?? (one.endOfTier ? `end of the tier: no rule of ${pathOf(one.trigger)} or others matched` :
    one.noProfile ? "no policy or profile allowed it" : one.refused ? `${pathOf(one)} cannot be enforced` :
    one.unknown ? one.said : `${pathOf(one)} rule ${one.rule}`);
  const policy = one.trigger ?? one;
  const named = policy.name ? pick(option("policy", pathOf(policy)), what) : make("bdi", {}, shown(what));
  if (policy.name) named.removeAttribute("tabindex");
  return make("li", {class: {Deny: "deny", Pass: "pass"}[one.action] ?? "allow"},
    make("b", {}, action + (tier ? ", " : ""), make("bdi", {}, shown(tier))), named);
}

function sideOf(flow, direction, end) {
  const own = one => (one.direction ?? (flow.reporter === "dst" ? "ingress" : "egress")) === direction;
  const steps = flow.decided.filter(own).map(stepOf);
  const stopped = direction === "ingress" && isDenied(flow) && !steps.length;
  const none = stopped ? "not asked: it was denied before" :
    end.kind === "address" ? "not recorded here: where this end is, its node records its side" :
    "nothing of this node decided";
  const title = direction === "egress" ? "Egress, where it comes from: " : "Ingress, where it goes to: ";
  return make("div", {}, make("h3", {}, title, make("bdi", {}, shown(nameOf(end)))),
    steps.length ? make("ol", {}, ...steps) : make("p", {class: "soft"}, none));
}

const bothWays = (counts, flow) => counts ? `${number(counts.out ?? 0)} out, ${number(counts.in ?? 0)} in` :
  flow.ended ? "not counted" : "not counted yet";

function factsOf(flow) {
  const end = isDenied(flow) ? "denied" : flow.end === "unseen" ? "ended, unseen" : flow.ended ? "ended" : "open";
  const facts = [["first", dayAndClock(new Date(flow.start))], ["last", dayAndClock(new Date(flow.last))],
    ["state", end], ["from", placeOf(flow.source)], ["to", placeOf(flow.destination)],
    ["packets", bothWays(flow.packets, flow)], ["bytes", bothWays(flow.bytes, flow)], ["node", flow.node],
    ["known by", flow.how]];
  const {asked, service} = flow.destination;
  if (asked) facts.push(["sent to", (service ? `${pathOf(service)}, ` : "") + placeOf(asked)]);
  if (flow.connections !== 1) facts.push(["connections", number(flow.connections)]);
  return make("dl", {class: "facts"}, ...facts.map(([name, value]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, make("bdi", {}, shown(value))))));
}

function nowOf(now) {
  const texts = lines => lines.map(line => make("p", {class: line.startsWith("{") ? "mono" : ""}, shown(line)));
  if (now.error) return make("p", {class: "bad"}, shown(now.error));
  const kinds = {Allow: "allow", Deny: "deny", Pass: "pass", "": "pass"};
  const verbs = {Allow: "allows", Deny: "DENIES", Pass: "passes on", "": "is not asked"};
  const stepsOf = one => (one.steps ?? []).map(step => make("li", {class: kinds[step.action] ?? "pass"},
    make("b", {}, make("bdi", {}, shown(step.tier ? `tier ${step.tier}` : "profiles")), ` ${verbs[step.action] ?? ""}`),
    step.action ? make("bdi", {}, shown(step.by)) : ""));
  const sides = [...now.ends, ...now.hosts].map(one => make("div", {class: one.allowed ? "allowed" : "denied"},
    ...texts(one.why), make("ol", {}, ...stepsOf(one))));
  return make("div", {}, make("h3", {}, `Now the connection is ${now.allowed ? "allowed" : "DENIED"}`),
    make("p", {class: "soft"}, "as the datastore says; rules are counted from 1 here"),
    make("div", {class: "sides"}, ...sides), ...texts(now.warnings));
}

function detailOf({flow, now}) {
  const command = make("div", {class: "command"}, make("code", {class: "mono"}, shown(flow.explain)),
    make("button", {type: "button", class: "copy"}, "Copy"));
  if (data.live) command.append(make("button", {type: "button", class: "judge"}, "Explain now"));
  return make("tr", {class: "detail"}, make("td", {colspan: "6"},
    make("div", {class: "sides"}, sideOf(flow, "egress", flow.source), sideOf(flow, "ingress", flow.destination)),
    factsOf(flow), command, ...(now ? [make("div", {class: "now"}, nowOf(now))] : [])));
}

function toggle(entry, open = !entry.detail) {
  if (open === !!entry.detail) return;
  entry.detail?.remove();
  entry.detail = open ? detailOf(entry) : null;
  entry.row.setAttribute("aria-expanded", String(open));
  if (!open) return;
  entry.row.after(entry.detail);
  entry.detail.scrollIntoView({block: "nearest"});
  if (data.live) refresh(entry);
}

function redraw(entry, flow) {
  entry.flow = flow;
  fill(entry.row, flow);  // the other side may have denied it a moment later
  if (!entry.detail) return;
  const made = detailOf(entry);
  entry.detail.replaceWith(made);
  entry.detail = made;
}

async function copyCommand(entry) {
  if (!entry) return;
  toggle(entry, true);
  const code = entry.detail.querySelector("code"), button = entry.detail.querySelector(".copy");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {  // not allowed here: then it is selected
    getSelection().selectAllChildren(code);
  }
}

// -- rows come, go and are chosen

function choose(entry, scrolls = true) {
  current?.row.classList.remove("current");
  current = entry;
  if (!entry) return;
  entry.row.classList.add("current");
  entry.row.focus({preventScroll: true});
  if (scrolls) entry.row.scrollIntoView({block: "nearest"});
}

const visible = () => [...flows.values()].filter(entry => !entry.row.hidden);

function neighbour(step) {
  const next = row => step > 0 ? row.nextElementSibling : row.previousElementSibling;
  let row = current ? next(current.row) : rows.firstElementChild;
  while (row && (row.hidden || !row.dataset.key)) row = current ? next(row) : row.nextElementSibling;
  return row ? flows.get(row.dataset.key) : null;
}

function drop(key, entry) {
  left = Math.max(left, Date.parse(entry.flow.start) / 1000 || 0);
  flows.delete(key);
  entry.row.remove();
  entry.detail?.remove();
  if (current === entry) current = null;
}

// newest last; a flow that is known already is brought up to date
function add(found) {
  const fresh = document.createDocumentFragment();
  for (const flow of found.slice(-MOST)) {
    const key = keyOf(flow), known = flows.get(key);
    if (known) {
      redraw(known, flow);
      continue;
    }
    const row = rowOf(flow, key);
    flows.set(key, {flow, row, detail: null});
    fresh.prepend(row);
  }
  rows.prepend(fresh);
  for (const [key, entry] of flows) {
    if (flows.size <= MOST) break;
    drop(key, entry);
  }
}

rows.addEventListener("click", event => {
  const row = event.target.closest("tr.flow");
  const detail = event.target.closest("tr.detail");
  const opened = detail && flows.get(detail.previousElementSibling.dataset.key);
  if (event.target.closest(".copy")) copyCommand(opened);
  else if (event.target.closest(".judge")) judge(opened);
  else if (row && !event.target.closest("button") && getSelection().isCollapsed) {
    const entry = flows.get(row.dataset.key);
    choose(entry, false);
    toggle(entry);
  }
});
"""
