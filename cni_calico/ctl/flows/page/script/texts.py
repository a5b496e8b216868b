"""PURE: what the page's script makes of values: texts and elements.

Rule: whatever comes from a flow becomes text, never markup, and characters that are not seen are shown as numbers.
"""

TEXTS = r"""
const data = JSON.parse(document.getElementById("data").textContent);
const at = id => document.getElementById(id);
const shown = value => String(value).replace(/[\p{C}\p{Z}]/gu,
  c => c === " " ? c : "\\x" + c.codePointAt(0).toString(16).padStart(2, "0"));

function make(name, attributes, ...parts) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...parts);
  return made;
}

const nameOf = end => "name" in end ? (end.namespace ? end.namespace + "/" : "") + end.name :
  end.ip + (end.set ? ` (${pathOf(end.set)})` : "");
const bracketed = ip => ip.includes(":") ? `[${ip}]` : ip;
const placeOf = end => end.port === undefined ? end.ip : `${bracketed(end.ip)}:${end.port}`;
const pathOf = one => (one.namespace ? one.namespace + "/" : "") + one.name;
const isDenied = flow => flow.verdict === "denied";
const verdictOf = flow => isDenied(flow) ? "DENIED" : "allowed";
const number = value => value.toLocaleString("en");

function whereOf(flow) {
  const port = flow.icmp ? "type " + flow.icmp.type : flow.destination.port;
  return flow.protocol + (port === undefined ? "" : "/" + port);
}

function byOf(flow) {
  const said = flow.decided.map(one => one.said);
  const times = flow.connections === 1 ? "" : `${flow.connections} x `;
  return times + (isDenied(flow) ? said.slice(-1) : said).join(", ");
}

const two = value => String(value).padStart(2, "0");
const clock = time => isNaN(time) ? "unknown" :
  `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
const clockOf = text => { const time = new Date(text);
  return isNaN(time) ? "unknown" : `${clock(time)}.${String(time.getMilliseconds()).padStart(3, "0")}` };
const dayAndClock = time => isNaN(time) ? "unknown" :
  `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${clock(time)}`;

function quoted(word) {
  return /^[\w@%+=:,.\/-]+$/.test(word) ? word : "'" + word.replaceAll("'", `'"'"'`) + "'";
}
const option = (name, value) => `--${name}${value.startsWith("-") ? "=" : " "}${quoted(value)}`;

function pick(words, text, title) {
  const button = make("button", {type: "button", class: "pick", tabindex: "-1", title: title ?? `only ${shown(words)}`},
    make("bdi", {}, shown(text)));
  button.dataset.words = words;
  return button;
}
"""
