"""PURE: how the open page gets flows, and what it says when it gets none.

Rule: what is missing is said, and a lost connection is made again, with the flows of the time between.
"""

LIVE = r"""
let words = data.filter, source = null, newest = 0, since = 0, seen = 0, failures = 0, lostAt = null, timer = 0;
const PACE_MS = 100, SLOWEST_MS = 3000;
let waiting = [], flushDue = 0, pace = PACE_MS, paused = false, telling = false;  // telling: of what came before

function say(text) {
  const close = make("button", {type: "button", "aria-label": "Dismiss"}, "×");
  const notice = make("div", {}, make("span", {}, shown(text)), close);
  close.addEventListener("click", () => notice.remove());
  at("notices").prepend(notice);
  while (at("notices").childElementCount > 5) at("notices").lastElementChild.remove();
  return notice;
}

let missed = 0, missedNotice = null;

// many small losses are one notice
function sayMissed(count, why) {
  if (!missedNotice?.isConnected) missed = 0;
  missed += count;
  const text = `${number(missed)} flows are missing here: ${why} (until ${clock(new Date())})`;
  if (missedNotice?.isConnected) missedNotice.firstElementChild.textContent = shown(text);
  else missedNotice = say(text);
}

function setState(text, kind = "") {
  at("state").textContent = text;
  at("state").className = `tag ${kind}`;
}

function receive(flow) {
  const time = Date.parse(flow.start) / 1000, known = flows.has(keyOf(flow));
  if (telling && !known && time <= left) return;  // it was here before, and has left the table
  if (!known) seen += flow.connections;
  if (time > newest) newest = time;
  waiting.push(flow);
  if (waiting.length > 2 * MOST) waiting = waiting.slice(-MOST);
  flushDue ||= setTimeout(flush, pace);
}

function flush() {
  flushDue = 0;
  if (paused) {
    at("pause").textContent = `Go on (${waiting.length > MOST ? "over " + number(MOST) : number(waiting.length)} new)`;
    return;
  }
  const begun = performance.now();
  add(waiting);
  waiting = [];
  void rows.offsetHeight;  // so that the time of drawing is known: most of the time the page is there for its reader
  pace = Math.min(SLOWEST_MS, Math.max(PACE_MS, 4 * (performance.now() - begun)));
  summarizeSoon();
}

function pause(pauses) {
  paused = pauses;
  at("pause").setAttribute("aria-pressed", String(pauses));
  at("pause").textContent = pauses ? "Go on" : "Pause";
  if (!pauses) flush();
}

function connect() {
  clearTimeout(timer);
  source?.close();
  telling = true;
  const asked = new URLSearchParams({filter: words});
  if (since) asked.set("since", String(since - 1));
  const opened = source = new EventSource(`flows?${asked}`);
  const on = (name, then) => opened.addEventListener(name, event => {
    if (source === opened) then(JSON.parse(event.data));
  });
  on("flow", receive);
  on("lost", event => event.missed ? sayMissed(event.missed, event.text) : say(event.text));
  on("ready", event => {
    failures = 0;
    telling = false;
    at("node").textContent = shown(event.node ?? "");
    setState(event.goes_on ? "live" : "up to the time asked for", event.goes_on ? "live" : "");
    if (lostAt)
      say(`Connected again at ${clock(new Date())}: what the recorder has since ${clock(lostAt)} has been read.`);
    lostAt = null;
    if (!event.goes_on) close();
    flushDue ||= setTimeout(flush, 0);
  });
  on("wrong", event => { close(); complain(event.error); setState("filter not understood", "lost") });
  on("gone", event => again(event.error));
  opened.addEventListener("error", () => { if (source === opened) again("") });
  if (!lostAt) setState("connecting");
}

function close() {
  clearTimeout(timer);
  source?.close();
  source = null;
}

async function again(why) {
  close();
  lostAt ??= new Date();
  since = newest;
  const wait = Math.min(10, 2 ** failures++);
  setState(`not connected since ${clock(lostAt)}: trying again`, "lost");
  timer = setTimeout(connect, wait * 1000);
  if (failures === 1 && why) say(why);
  if (why) return;
  try {
    const answer = await fetch("./", {cache: "no-store", redirect: "manual"});
    if (answer.ok || source) return;
    close();
    setState("not connected", "lost");
    say("calicoctl was started again: open the address that it printed now.");
  } catch {
    if (failures === 1) say("calicoctl does not answer: the command may have ended.");
  }
}

// what has been counted meanwhile of a flow that is looked at: only its beginning is told by itself
async function refresh(entry) {
  const {flow} = entry, key = keyOf(flow), port = flow.destination.port;
  const words = [option("from", flow.source.ip), option("to", flow.destination.ip), option("protocol", flow.protocol),
    ...(port === undefined ? [] : [option("port", String(port))]), option("until", flow.last)];
  const asked = new URLSearchParams({filter: words.join(" "), since: String(Date.parse(flow.start) / 1000 - 1)});
  try {
    const answer = await fetch(`flows?${asked}`, {cache: "no-store"}), told = (await answer.text()).split("\n\n");
    const found = told.filter(event => event.startsWith("event: flow\n"))
      .map(event => JSON.parse(event.split("\ndata: ")[1]));
    const now = found.find(one => keyOf(one) === key);
    if (now && JSON.stringify(now) !== JSON.stringify(entry.flow)) redraw(entry, now);
  } catch {  // what is shown is what was told
  }
}

// what would be decided now, which is the answer of calicoctl policy explain
async function judge(entry) {
  if (!entry || !data.live) return;
  toggle(entry, true);
  const {source, destination, protocol} = entry.flow, named = end => end.kind === "pod" ? nameOf(end) : end.ip;
  const asked = new URLSearchParams({from: named(source), to: named(destination), protocol});
  if (destination.port !== undefined) asked.set("port", destination.port);
  try {
    const answer = await fetch(`decision?${asked}`, {cache: "no-store"});
    entry.now = answer.ok ? await answer.json() : {error: await answer.text()};
  } catch {
    entry.now = {error: "calicoctl does not answer"};
  }
  redraw(entry, entry.flow);
}

function complain(text) {
  at("wrong").textContent = text ? shown(text) : "";
  at("wrong").hidden = !text;
}

function reset() {
  close();
  flows.clear();
  rows.replaceChildren();
  current = null;
  waiting = [];
  newest = since = seen = failures = left = 0;
  lostAt = null;
}
"""
