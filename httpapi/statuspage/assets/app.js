"use strict";

// What is shown comes from the server as JSON, and some of it from clients that mean no good:
// it becomes text of elements, never HTML. The token is sent in a header and nowhere else.

// The page may be below a prefix. Each server has a token of its own.
const prefix = location.pathname.replace(/\/larder\/?$/, "");
const dataPath = prefix + "/larder/status";
const tokenKey = "larder-token" + prefix;
const keptSamples = 90;

const by = (id) => document.getElementById(id);

let token = sessionStorage.getItem(tokenKey) || "";
let stream = null; // what ends the stream that is read
let shown = null; // the last snapshot
const samples = []; // what changed between snapshots, the oldest first

// element makes an element with text or other elements in it.
function element(name, props, ...inside) {
  const e = document.createElement(name);
  for (const [key, value] of Object.entries(props || {})) {
    if (value !== undefined && value !== "") e.setAttribute(key, value);
  }
  e.append(...inside.map((x) => (x instanceof Node ? x : String(x))));
  return e;
}

function drawing(name, props, ...inside) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(props)) e.setAttribute(key, value);
  e.append(...inside);
  return e;
}

function bytes(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 999.5) return (unit === "B" || n >= 99.5 ? n.toFixed(0) : n.toFixed(1)) + " " + unit;
    n /= 1000;
  }
  return n.toFixed(1) + " TB";
}

function count(n) {
  return Math.round(n).toLocaleString("en");
}

function rate(n) {
  return n >= 100 ? count(n) : n.toFixed(1);
}

function percent(share) {
  return (100 * share).toFixed(1) + "%";
}

function age(seconds) {
  if (seconds < 90) return Math.max(0, seconds).toFixed(0) + " s";
  if (seconds < 5400) return (seconds / 60).toFixed(0) + " min";
  if (seconds < 129600) return (seconds / 3600).toFixed(0) + " h";
  return (seconds / 86400).toFixed(0) + " d";
}

// breakable is text that may be broken behind the marks that names are made of.
function breakable(text) {
  const out = document.createElement("span");
  for (const part of (text || "–").split(/(?<=[.:/_@-])/)) out.append(part, document.createElement("wbr"));
  return out;
}

// table fills a table. Columns have a title, a function that returns a cell's text or element, and classes.
function table(id, columns, rows, none) {
  const t = by(id);
  const titles = columns.map((c) => c.title).join("|");
  if (t.dataset.titles !== titles) {
    t.dataset.titles = titles;
    t.tHead.replaceChildren(element("tr", {}, ...columns.map((c) => element("th", { scope: "col", class: c.class }, c.title))));
  }
  const body = rows.map((row) => element("tr", {}, ...columns.map((c, i) => {
    const inside = c.cell(row);
    return element(i === 0 && c.head ? "th" : "td", { scope: i === 0 && c.head ? "row" : "", class: [c.class || "", c.mark ? c.mark(row) : ""].join(" ").trim() }, inside);
  })));
  if (body.length === 0) body.push(element("tr", {}, element("td", { class: "none", colspan: columns.length }, none || "None.")));
  t.tBodies[0].replaceChildren(...body);
}

// sparkline draws values, the last at the right.
function sparkline(values, title) {
  const width = 120, height = 28;
  const most = Math.max(...values, 1e-9);
  const step = width / (keptSamples - 1);
  const from = width - step * (values.length - 1);
  const points = values.map((v, i) => [from + i * step, height - 2 - (height - 4) * (v / most)]);
  const path = points.map(([x, y], i) => (i ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1)).join("");
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
  if (values.length > 1) {
    svg.append(drawing("path", { class: "area", d: `${path}L${width} ${height}L${from.toFixed(1)} ${height}Z` }), drawing("path", { class: "line", d: path }));
  }
  return svg;
}

// share draws a part of a whole.
function share(part) {
  const width = Math.min(100, Math.max(0, 100 * part || 0));
  return drawing("svg", { class: "share", viewBox: "0 0 100 3", preserveAspectRatio: "none", "aria-hidden": "true" },
    drawing("rect", { class: "rest", width: 100, height: 3 }), drawing("rect", { width: width.toFixed(2), height: 3 }));
}

function sample(s) {
  if (!shown || shown.started !== s.started) {
    samples.length = 0;
    return;
  }
  const seconds = (Date.parse(s.time) - Date.parse(shown.time)) / 1000;
  if (seconds <= 0.2) return;
  const grown = (get) => Math.max(0, (get(s) - get(shown)) / seconds);
  samples.push({
    cpu: grown((x) => x.processCPUSeconds), charged: grown((x) => x.total.cpuSeconds), requests: grown((x) => x.total.requests),
    bytes: grown((x) => x.total.bytes), events: grown((x) => x.total.events), memory: s.memory.mapped, failed: grown((x) => x.failed),
    streams: s.streams,
  });
  if (samples.length > keptSamples) samples.shift();
}

function tiles(s) {
  const last = samples[samples.length - 1];
  const now = (get, write) => (last ? write(get(last)) : "–");
  const objects = s.resources.reduce((sum, r) => sum + r.objects, 0);
  const behind = s.resources.filter((r) => r.lag > 0).length;
  const all = [
    ["CPU", now((x) => x.cpu, percent), now((x) => x.charged, (v) => percent(v) + " for clients"), (x) => x.cpu],
    ["Requests/s", now((x) => x.requests, rate), count(s.total.requests) + " in all", (x) => x.requests],
    ["Responses", now((x) => x.bytes, (v) => bytes(v) + "/s"), bytes(s.total.bytes) + " in all", (x) => x.bytes],
    ["Watch events/s", now((x) => x.events, rate), count(s.streams) + " open streams", (x) => x.events],
    ["Memory", bytes(s.memory.mapped), s.memory.limit ? percent(s.memory.mapped / s.memory.limit) + " of the limit" : "no limit is set", (x) => x.memory],
    ["Objects", count(objects), s.revision ? "revision " + s.revision + (behind ? `, ${behind} behind` : "") : "the store does not respond", null],
  ];
  by("tiles").replaceChildren(...all.map(([title, value, more, get]) => {
    const inside = [element("div", { class: "value" }, value), element("div", { class: "more" }, more)];
    if (get) inside.push(sparkline(samples.map(get), title + " in the last minutes"));
    return element("div", { class: "tile" }, element("dt", {}, title), element("dd", {}, ...inside));
  }));
}

// say changes a text that is read out only if it is another.
function say(id, text) {
  const e = by(id);
  if (e.textContent !== text) e.textContent = text;
}

function health(s) {
  const bad = s.checks.filter((c) => c.error);
  say("health-sum", bad.length ? `${bad.length} of ${s.checks.length} checks fail` : `all ${s.checks.length} checks pass`);
  const good = s.checks.length - bad.length;
  const list = bad.map((c) => element("li", { class: "bad" }, `${c.name}: ${c.error}`));
  const open = by("checks").querySelector("details")?.open;
  if (good) {
    const names = s.checks.filter((c) => !c.error).map((c) => c.name).join(", ");
    const more = element("details", {}, element("summary", {}, `${good} pass`), element("span", {}, names));
    more.open = Boolean(open);
    list.push(element("li", {}, more));
  }
  by("checks").replaceChildren(...list);
}

const number = "number";

function clients(s) {
  const d = s.clients;
  const seconds = Math.max(1e-3, (Date.parse(d.to) - Date.parse(d.from)) / 1000);
  const kind = { cpu: "cpuSeconds" }[d.sort] || d.sort;
  const names = {
    client: [["User", "user"], ["Agent", "userAgent"], ["Request", "request"]],
    user: [["User", "user"]], agent: [["Agent", "userAgent"]], resource: [["Resource", "resource"]], verb: [["Verb", "verb"]],
  }[d.by];
  const missed = d.rows.some((r) => r.missed[kind] > 0);
  const columns = names.map(([title, key], i) => ({
    title, head: i === 0, class: "name" + (key === "userAgent" ? " any" : "") + (key === "userAgent" && names.length > 1 ? " wide" : ""),
    cell: (r) => breakable(key === "request" ? `${r.verb || "–"} ${r.resource || "–"}` : r[key]),
  }));
  columns.push(
    { title: "CPU", class: number, cell: (r) => percent(r.used.cpuSeconds / seconds) },
    { title: "Requests/s", class: number, cell: (r) => rate(r.used.requests / seconds) },
    { title: "Bytes/s", class: number + " wide", cell: (r) => bytes(r.used.bytes / seconds) },
    { title: "Events/s", class: number + " wide", cell: (r) => rate(r.used.events / seconds) },
    { title: "Share", class: "wide", cell: (r) => element("div", {}, percent(r.used[kind] / (d.total[kind] || 1)), share(r.used[kind] / (d.total[kind] || 1))) },
  );
  if (missed) columns.push({ title: "Missed at most", class: number + " wide", cell: (r) => percent(r.missed[kind] / (r.used[kind] || 1)) });
  table("clients", columns, d.rows, "Nobody has asked for anything.");
  say("clients-note", `${d.rows.length} of ${count(d.names)} names in ${age(seconds)}. CPU is in parts of one processor: ${percent(d.total.cpuSeconds / seconds)} of the process's ${percent(d.process.cpuSeconds / seconds)} was done for clients.`);
}

function resources(s) {
  const rows = s.resources.filter((r) => by("empty").checked || r.objects > 0 || r.watches > 0 && r.lag > 0 || !r.ready);
  rows.sort((a, b) => b.bytes.canonical - a.bytes.canonical || (a.name < b.name ? -1 : 1));
  table("resources", [
    { title: "Resource", head: true, class: "name", cell: (r) => breakable(r.name) },
    { title: "Objects", class: number, cell: (r) => (r.ready ? count(r.objects) : "loading") },
    { title: "Canonical", class: number, cell: (r) => bytes(r.bytes.canonical) },
    { title: "Other encodings", class: number + " wide", cell: (r) => bytes(r.bytes.encodings) },
    { title: "Frames", class: number + " wide", cell: (r) => bytes(r.bytes.frames) },
    { title: "History", class: number + " wide", cell: (r) => bytes(r.bytes.history) },
    { title: "Watches", class: number + " wide", cell: (r) => count(r.watches) },
    { title: "Revision", class: number + " wide", cell: (r) => r.revision },
    { title: "Lag", class: number, cell: (r) => (r.ready ? r.lag : "–"), mark: (r) => (r.lag > 0 ? "warn" : "") },
  ], rows, "There are no objects.");
}

function watchers(s) {
  const sum = s.watchers.reduce((n, w) => n + w.watches, s.unlistedWatches);
  say("watchers-sum", `${count(sum)} open` + (s.unlistedWatches ? `, ${count(s.unlistedWatches)} of them not listed` : ""));
  table("watchers", [
    { title: "Resource", head: true, class: "name", cell: (w) => breakable(w.resource) },
    { title: "User", class: "name", cell: (w) => breakable(w.user) },
    { title: "Agent", class: "name any wide", cell: (w) => breakable(w.userAgent) },
    { title: "Watches", class: number, cell: (w) => count(w.watches) },
    { title: "Sending", class: number + " wide", cell: (w) => count(w.busy) },
    { title: "Lag", class: number, cell: (w) => w.lag, mark: (w) => (w.lag > 0 ? "warn" : "") },
  ], s.watchers.slice(0, 25), "Nobody watches.");
}

function flow(s) {
  table("flow", [
    { title: "Priority level", head: true, class: "name", cell: (l) => l.name },
    { title: "Seats", class: number, cell: (l) => (l.exempt ? `${l.taken} taken` : `${l.taken} of ${l.seats}`) },
    { title: "", class: "wide", cell: (l) => (l.exempt ? "" : share(l.taken / l.seats)) },
    { title: "Executing", class: number + " wide", cell: (l) => l.executing },
    { title: "Waiting", class: number, cell: (l) => l.waiting, mark: (l) => (l.waiting > 0 ? "warn" : "") },
    { title: "Dispatched", class: number + " wide", cell: (l) => count(l.dispatched) },
    { title: "Rejected", class: number, cell: (l) => count(l.rejected), mark: (l) => (l.rejected > 0 ? "bad" : "") },
  ], s.flow, "Flow control is off: the number of requests decides.");
}

function memory(s) {
  const m = s.memory;
  const rows = [
    ["Process, from the system", m.mapped, m.limit], ["Heap", m.heap, m.goal], ["Live at the last collection", m.live, 0],
    ["Caches: canonical encodings", m.caches.canonical, 0], ["Caches: other encodings", m.caches.encodings, 0],
    ["Caches: frames of watches", m.caches.frames, 0], ["Caches: past events", m.caches.history, 0], ["Compressed lists", m.lists, 0],
    ...m.budgets.map((b) => [`Budget beside the objects: ${b.name}`, b.used, b.limit]),
  ];
  say("memory-sum", m.limit ? `GOMEMLIMIT ${bytes(m.limit)}` : "no GOMEMLIMIT");
  table("memory", [
    { title: "What", head: true, class: "name", cell: (r) => r[0] },
    { title: "Bytes", class: number, cell: (r) => bytes(r[1]) },
    { title: "Of", class: number, cell: (r) => (r[2] ? bytes(r[2]) : "–") },
    { title: "", class: "wide", cell: (r) => (r[2] ? share(r[1] / r[2]) : "") },
  ], rows);
}

function failures(s) {
  say("failures-sum", s.failed ? `${count(s.failed)} since the start` : "");
  table("failures", [
    { title: "Code", head: true, class: "bad", cell: (f) => f.code },
    { title: "When", class: number, cell: (f) => age((Date.parse(s.time) - Date.parse(f.time)) / 1000) + " ago" },
    { title: "Request", class: "name any mono", cell: (f) => breakable(`${f.method} ${f.path}`) },
    { title: "Message", class: "name any", cell: (f) => f.message || "–" },
    { title: "User", class: "name wide", cell: (f) => breakable(f.user) },
    { title: "Agent", class: "name any wide", cell: (f) => breakable(f.userAgent) },
  ], s.failures.slice(0, 20), "There were none.");
}

function show(s) {
  sample(s);
  shown = s;
  by("login").hidden = true;
  by("board").hidden = false;
  by("leave").hidden = !token;
  say("version", s.version);
  say("footer", `${location.host}, up for ${age((Date.parse(s.time) - Date.parse(s.started)) / 1000)}, ${count(s.goroutines)} goroutines`);
  for (const draw of [tiles, health, clients, resources, watchers, flow, memory, failures]) draw(s);
}

function state(name, text) {
  by("state").dataset.state = name;
  say("state", text);
}

// ask shows the form for a token.
function ask(why) {
  state("idle", "Signed out");
  by("board").hidden = true;
  by("login").hidden = false;
  by("leave").hidden = true;
  say("refusal", why);
  by("token").focus();
}

// lines yields what comes in lines of JSON.
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const line of parts) if (line) yield JSON.parse(line);
  }
}

// follow reads one stream to its end, and reports whether there may be another.
async function follow(signal) {
  const query = new URLSearchParams({ watch: "1", by: by("by").value, sort: by("sort").value, window: by("window").value });
  const response = await fetch(`${dataPath}?${query}`, { headers: token ? { Authorization: "Bearer " + token } : {}, signal, cache: "no-store", redirect: "error" });
  if (response.status === 401 || response.status === 403) {
    const tried = token;
    token = "";
    sessionStorage.removeItem(tokenKey);
    const text = await response.json().catch(() => ({}));
    ask(tried ? text.message || "The server does not accept this token." : "");
    return false;
  }
  if (!response.ok) throw new Error(`The server responds with ${response.status}`);
  if (token) sessionStorage.setItem(tokenKey, token);
  for await (const s of lines(response.body)) {
    show(s);
    state("live", "Live");
  }
  return true;
}

// run reads streams until another run begins, or the user is asked for a token.
async function run() {
  stream?.abort();
  const mine = (stream = new AbortController());
  for (let wait = 1; !mine.signal.aborted;) {
    try {
      if (!(await follow(mine.signal))) return;
      wait = 1;
    } catch (e) {
      if (mine.signal.aborted) return;
      console.error(e);
      state("lost", "No response, retrying");
      wait = Math.min(30, wait * 2);
    }
    await new Promise((over) => setTimeout(over, wait * 1000));
  }
}

by("token-form").addEventListener("submit", (e) => {
  e.preventDefault();
  token = by("token").value.trim();
  by("token").value = "";
  state("connecting", "Connecting");
  run();
});
by("leave").addEventListener("click", () => {
  stream?.abort();
  token = "";
  sessionStorage.removeItem(tokenKey);
  shown = null;
  samples.length = 0;
  ask("");
});
for (const id of ["by", "sort", "window"]) by(id).addEventListener("change", run);
by("empty").addEventListener("change", () => shown && resources(shown));
run();
