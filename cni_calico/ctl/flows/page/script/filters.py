"""PURE: the filters of the command line, for a page that has no calicoctl to ask.

Rule: the same words mean the same flows as on the command line (a test compares them); what is not understood is said.
"""

FILTERS = r"""
const WORDS = {FORWARDED: "allowed", DROPPED: "denied", ALLOWED: "allowed", DENIED: "denied"};
const PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6", 132: "sctp", icmpv6: "icmp6"};
const isUpTo = (text, most) => /^[0-9]+$/.test(text) && Number(text) <= most;

function valueOf(name, field, value) {
  if (!value.trim() || (field === "port" && !isUpTo(value, 65535)))
    throw new Error(`filter: argument ${name}: cannot be ${shown(value)}`);
  if (field === "port") return String(Number(value));
  if (field !== "protocol") return value;
  const known = PROTOCOLS[value.toLowerCase()] ?? value.toLowerCase();
  if (!Object.values(PROTOCOLS).includes(known) && !isUpTo(known, 255))
    throw new Error(`filter: argument ${name}: cannot be ${shown(value)}`);
  return known;
}

function splitWords(text) {
  const words = [];
  let word = null, quote = "", escaped = false;
  for (const c of text) {
    if (escaped) { word += (quote && !'"\\'.includes(c) ? "\\" : "") + c; escaped = false }
    else if (c === "\\" && quote !== "'") { word ??= ""; escaped = true }
    else if (quote) { if (c === quote) quote = ""; else word += c }
    else if (c === "'" || c === '"') { word ??= ""; quote = c }
    else if (/[ \t\r\n]/.test(c)) { if (word !== null) words.push(word); word = null }
    else word = (word ?? "") + c;
  }
  if (quote || escaped) throw new Error("filter: a quotation mark or a backslash is left open");
  return word === null ? words : [...words, word];
}

function parseFilter(text) {
  const found = new Map(), words = splitWords(text);
  let negated = false;
  for (let i = 0; i < words.length; i++) {
    if (words[i] === "--not") { negated = true; continue }
    const [, name, , given] = /^(--?[^=]*)(=([^]*))?$/.exec(words[i]) ?? [null, words[i]];
    const field = data.options[name];
    if (!field)
      throw new Error(`filter: a file knows no ${shown(name)}, but ${Object.keys(data.options).join(", ")}`);
    let value = given ?? words[++i];
    if (value === undefined || (given === undefined && value.startsWith("-")))
      throw new Error(`filter: argument ${name}: expected one argument`);
    if (field === "verdict") {
      if (!Object.hasOwn(WORDS, value.toUpperCase()))
        throw new Error(`filter: argument ${name}: in a file expected allowed or denied, got ${shown(value)}`);
      value = WORDS[value.toUpperCase()];
    }
    value = valueOf(name, field, value);
    const key = field + negated;
    found.set(key, {field, negated, values: [...(found.get(key)?.values ?? []), value]});
    negated = false;
  }
  if (negated) throw new Error("filter: there is no filter after --not");
  return [...found.values()];
}

function isEnd(end, value) {
  if (end.ip === value) return true;
  const slash = value.lastIndexOf("/");
  const named = "name" in end ? end : end.set;
  return named !== undefined && (slash < 0 || named.namespace === value.slice(0, slash))
    && named.name.startsWith(value.slice(slash + 1));
}

function isPolicy(one, value) {
  const policy = one.trigger ?? one, slash = value.lastIndexOf("/");
  return policy.name === value.slice(slash + 1) && (slash < 0 || policy.namespace === value.slice(0, slash));
}

function isService(service, value) {
  const slash = value.lastIndexOf("/");
  return service !== undefined && service.name === value.slice(slash + 1)
    && (slash < 0 || service.namespace === value.slice(0, slash));
}

function hasLabel(end, value) {
  const at = value.indexOf("="), key = at < 0 ? value : value.slice(0, at), labels = end.labels ?? {};
  return Object.hasOwn(labels, key) && (at < 0 || labels[key] === value.slice(at + 1));
}

const MATCHES = {
  verdict: (flow, value) => flow.verdict === value,
  from: (flow, value) => isEnd(flow.source, value),
  to: (flow, value) => isEnd(flow.destination, value),
  pod: (flow, value) => isEnd(flow.source, value) || isEnd(flow.destination, value),
  namespace: (flow, value) => flow.source.namespace === value || flow.destination.namespace === value,
  "from-label": (flow, value) => hasLabel(flow.source, value),
  "to-label": (flow, value) => hasLabel(flow.destination, value),
  label: (flow, value) => hasLabel(flow.source, value) || hasLabel(flow.destination, value),
  service: (flow, value) => flow.destination.asked?.ip === value || isService(flow.destination.service, value),
  ip: (flow, value) => flow.source.ip === value || flow.destination.ip === value,
  port: (flow, value) => String(flow.destination.port) === value,
  protocol: (flow, value) => flow.protocol === value.toLowerCase(),
  policy: (flow, value) => flow.decided.some(one => isPolicy(one, value)),
  tier: (flow, value) => flow.decided.some(one => one.tier === value),
};
const meets = (flow, conditions) => conditions.every(
  one => one.values.some(value => MATCHES[one.field](flow, value)) !== one.negated);
"""
