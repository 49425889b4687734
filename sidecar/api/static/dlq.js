// Dead letters: counts and a list on request, one in a drawer, and redrives with their preview.

import { call, change, get, token, Unreachable } from "./api.js";
import { byId, el, say } from "./dom.js";
import { content, headers, moment, notice } from "./entry.js";
import { clock, count, distance, now, plural, utc } from "./format.js";

const KINDS = ["reason", "origin", "exception", "group", "hour"];
const ROWS = 8;
const PER_PAGE = 25;
const LOOK_TIMEOUT_MS = 15_000;
const POLL_MS = 1000;
const NONE = "(none)";

let filter = {};
let lookedBack = 0;
let counted = null;
let older = null;
let turn = 0;
let tokenDialog = () => {};

export function startDlq(openToken) {
  tokenDialog = openToken;
  byId("dlq-filter").addEventListener("submit", (event) => {
    event.preventDefault();
    look();
  });
  byId("dlq-on").addEventListener("click", () => countOn());
  byId("letters-more").addEventListener("click", () => listOn());
  byId("letters").tBodies[0].addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) openLetter(button.value);
  });
  byId("dlq-redrive").addEventListener("click", () => askRedrive(wanted(), `the dead letters ${named()}`));
  byId("letter-close").addEventListener("click", () => byId("letter").close());
  byId("redrive-back").addEventListener("click", () => byId("redrive").close());
  byId("redrive").addEventListener("close", () => (redrive = null));
  byId("redrive-form").addEventListener("submit", (event) => {
    event.preventDefault();
    redrive?.act();
  });
}

// Looking

async function look() {
  const form = new FormData(byId("dlq-filter"));
  const since = Number(form.get("since"));
  filter = Object.fromEntries(["topic", "reason", "origin", "exception", "group"]
    .map((name) => [name, (form.get(name) ?? "").trim()])
    .filter(([, value]) => value));
  lookedBack = since;
  if (since) filter.died_from = now() - since;
  counted = { read: 0, total: 0, cursor: "", by: Object.fromEntries(KINDS.map((kind) => [kind, {}])) };
  older = "";
  byId("letters").tBodies[0].replaceChildren();
  const mine = ++turn;
  if ((await countOn()) && mine === turn) await listOn();
}

async function ask(path, more) {
  const mine = turn;
  say(byId("dlq-said"), "Reading the DLQ …");
  const query = new URLSearchParams(Object.entries({ ...filter, ...more }).filter(([, value]) => value !== ""));
  const said = await call("GET", `${path}?${query}`, { timeoutMs: LOOK_TIMEOUT_MS }).catch((error) => error);
  if (mine !== turn) return null;
  if (said instanceof Unreachable || said.status !== 200) {
    say(byId("dlq-said"), `Not read: ${said.message ?? said.body.message}`);
    return null;
  }
  return said.body;
}

async function countOn() {
  const body = await ask("dlq", { cursor: counted.cursor });
  if (!body) return false;
  counted.read += body.read;
  counted.total += body.total;
  counted.cursor = body.cursor;
  counted.unread = body.unread;
  for (const kind of KINDS) {
    for (const [name, number] of Object.entries(body[`by_${kind}`])) counted.by[kind][name] = (counted.by[kind][name] ?? 0) + number;
  }
  showTopics(body);
  showCounts();
  return true;
}

function showTopics({ topic, topics }) {
  byId("dlq-topics").hidden = topics.length < 2;
  byId("dlq-name").replaceChildren(...topics.map((each) => el("option", { selected: each === topic }, each)));
  say(byId("dlq-topic"), topic);
}

function showCounts() {
  const rest = counted.unread ? ` Older ones are not counted yet: up to ${count(counted.unread)}.` : "";
  say(byId("dlq-said"), `${plural(counted.total, "dead letter")} of ${count(counted.read)} read.${rest}`);
  byId("dlq-on").hidden = counted.cursor === null;
  byId("dlq-redrive").hidden = counted.total === 0;
  byId("dlq-counts").replaceChildren(...(counted.total ? KINDS.map(countTable) : []));
  byId("dlq-reasons").replaceChildren(...Object.keys(counted.by.reason).map((each) => el("option", { value: each })));
}

function countTable(kind) {
  const all = Object.entries(counted.by[kind]);
  const ordered = kind === "hour" ? all.sort(([a], [b]) => (a < b ? 1 : -1)) : all.sort(([, a], [, b]) => b - a);
  const rows = ordered.slice(0, ROWS).map(([name, number]) => countRow(name || NONE, number));
  const rest = ordered.slice(ROWS);
  if (rest.length) rows.push(countRow(`${count(rest.length)} more`, rest.reduce((sum, [, number]) => sum + number, 0)));
  return el("table", {},
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, kind), el("th", { scope: "col", class: "number" }, "Dead letters"))),
    el("tbody", {}, ...rows));
}

const countRow = (name, number) =>
  el("tr", {}, el("th", { scope: "row", class: "name" }, el("bdi", {}, name)), el("td", { class: "number" }, count(number)));

async function listOn() {
  const body = await ask("dlq/messages", { limit: PER_PAGE, cursor: older });
  if (!body) return;
  older = body.cursor;
  const nowMs = now();
  byId("letters").tBodies[0].append(...body.messages.map((each) => row(each, nowMs)));
  byId("letters").hidden = !byId("letters").tBodies[0].rows.length;
  byId("letters-more").hidden = older === null;
  showCounts();
}

function row(each, nowMs) {
  return el("tr", {},
    el("td", { title: utc(each.died_ms) }, distance(each.died_ms, nowMs)),
    el("td", {}, el("bdi", {}, each.reason || NONE)),
    el("td", { class: "name", title: each.origin }, el("bdi", {}, each.origin || NONE)),
    el("td", { class: "name wide", title: each.exception }, el("bdi", {}, each.exception || NONE)),
    el("td", {}, el("button", { type: "button", class: "link-button", value: each.id }, each.id)));
}

// One

async function openLetter(id, payload = false) {
  const dialog = byId("letter");
  const body = byId("letter-body");
  say(byId("letter-title"), id);
  if (!dialog.open) {
    body.replaceChildren(el("p", { class: "soft" }, "Reading the DLQ …"));
    dialog.showModal();
    byId("letter-title").focus();
  }
  const topic = filter.topic ? { topic: filter.topic } : {};
  const query = new URLSearchParams({ ...topic, ...(payload ? { payload: true } : {}) });
  const said = await get(`dlq/messages/${id}?${query}`).catch((error) => error);
  if (byId("letter-title").textContent !== id) return;
  if (said.status === 200) {
    body.replaceChildren(...drawn(said.body, payload));
    if (payload) (body.querySelector("pre") ?? byId("letter-title")).focus();
  } else body.replaceChildren(...refused(said, `${payload ? "The payload" : "This"} needs the API token.`));
}

function refused(said, needsToken) {
  if (said.status !== 401) return [notice("bad", said.message ?? said.body.message)];
  return [
    notice("bad", token.get() ? "The API token is wrong." : needsToken),
    el("button", { type: "button", onclick: tokenDialog }, "Enter the token"),
  ];
}

function drawn(each, payload) {
  const nowMs = now();
  const came = each.came_from;
  const fields = [
    ["Reason", el("bdi", {}, each.reason || NONE)],
    ["Detail", el("bdi", {}, each.detail || NONE)],
    ["Died", moment(each.died_ms, nowMs)],
    ["Origin", el("bdi", {}, each.origin || NONE)],
    ["Exception", el("bdi", {}, each.exception || NONE)],
    ["Group", el("bdi", {}, each.group || NONE)],
    ["Attempt", each.attempt === null ? NONE : count(each.attempt)],
    ["Redriven", each.redrives === null ? "cannot be read" : plural(each.redrives, "time")],
    ["Came from", came ? `${came.topic}, partition ${came.partition}, offset ${came.offset}` : NONE],
  ];
  const parts = [
    el("div", { class: "row actions", role: "group", "aria-label": "Actions" },
      el("button", { type: "button", onclick: () => askRedrive(wanted(each), `dead letter ${each.id}`) }, "Redrive …")),
    discarding(each),
    el("dl", { class: "fields" }, ...fields.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
  ];
  if (each.truncated) parts.push(notice("warn", "A part of the message did not fit on the DLQ: it cannot be redriven."));
  parts.push(headers(each.headers));
  if (payload) parts.push(content("Key", each.key), content("Value", each.value));
  else parts.push(el("button", { type: "button", onclick: () => openLetter(each.id, true) }, "Show key and value"));
  return parts;
}

/** Return the form that discards a dead letter, or what takes that back. */
function discarding(each) {
  const topic = filter.topic ? { topic: filter.topic } : {};
  const answer = el("p", { role: "status" });
  const act = async (...request) => {
    const said = await change(...request).catch((error) => error);
    if (said.status < 300) await openLetter(each.id);
    else answer.replaceChildren(...refused(said, "This needs the API token."));
  };
  if (each.discarded) {
    const { who, why, at_ms } = each.discarded;
    const undo = () => act("DELETE", `dlq/discards/${each.id}?${new URLSearchParams(topic)}`);
    return el("div", {},
      notice("warn", `Discarded ${distance(at_ms, now())} by ${who}: ${why}`),
      el("button", { type: "button", onclick: undo }, "Take back"), answer);
  }
  const why = el("input", { type: "text", maxlength: 500, required: true, "aria-label": "Why it is discarded", placeholder: "why" });
  const submit = (event) => {
    event.preventDefault();
    act("POST", "dlq/discards", { ...topic, id: each.id, why: why.value });
  };
  return el("form", { class: "row", onsubmit: submit }, why, el("button", { type: "submit" }, "Discard"), answer);
}

// Redrives

/** Return the request for what the last look has selected, or for one dead letter, whose reason it names. */
function wanted(each) {
  const topic = filter.topic ? { topic: filter.topic } : {};
  if (each) return { ...topic, id: each.id, ...(each.reason ? { reason: [each.reason] } : {}) };
  const lists = ["reason", "origin", "exception", "group"].filter((name) => filter[name]);
  const chosen = { ...topic, ...Object.fromEntries(lists.map((name) => [name, [filter[name]]])) };
  if (!filter.died_from) return chosen;
  // "The last hour" is one run, whenever it is chosen: it never sends what it has sent before.
  return { ...chosen, died_from: filter.died_from, run: `page-${lookedBack}-${hash(JSON.stringify(chosen))}` };
}

/** Return the FNV-1a hash of a text. */
function hash(text) {
  let made = 0x811c9dc5;
  for (const each of new TextEncoder().encode(text)) made = Math.imul(made ^ each, 0x01000193) >>> 0;
  return made.toString(16);
}

function named() {
  const parts = ["reason", "origin", "exception", "group"].filter((name) => filter[name]).map((name) => `${name} ${filter[name]}`);
  if (filter.died_from) parts.push(`since ${clock(filter.died_from, now())}`);
  return parts.join(", ") || "of all kinds";
}

let redrive = null;

function askRedrive(request, what) {
  const mine = {};
  redrive = mine;
  say(byId("redrive-title"), "Redrive?");
  say(byId("redrive-text"), `Sends ${what} to the retry topic again. Nothing is deleted from the DLQ.`);
  const button = byId("redrive-do");
  button.hidden = true;
  say(byId("redrive-back"), "Back");
  byId("redrive").showModal();
  byId("redrive-back").focus();
  run(mine, { ...request, dry_run: true }, (found) => {
    if (found.state !== "done" || !found.redriven) return;
    say(button, `Redrive ${plural(found.redriven, "message")}`);
    button.hidden = button.disabled = false;
    mine.act = () => {
      say(button, "Stop");
      say(byId("redrive-back"), "Close");
      mine.act = () => change("DELETE", `dlq/redrives/${found.run}`).catch(() => null);
      run(mine, request, () => (button.hidden = true));
    };
  });
}

/** Start a redrive and show its status until it ends or the dialog is closed. */
async function run(mine, request, ended) {
  const answer = byId("redrive-answer");
  answer.replaceChildren(el("p", { class: "soft" }, request.dry_run ? "Counting …" : "Starting …"));
  let said = await change("POST", "dlq/redrives", request).catch((error) => error);
  while (mine === redrive) {
    if (said instanceof Unreachable || said.status >= 300) {
      answer.replaceChildren(...refused(said, "This needs the API token."));
      byId("redrive-do").hidden = true;
      return;
    }
    answer.replaceChildren(...status(said.body));
    if (said.body.state !== "running") {
      ended(said.body);
      return;
    }
    const name = said.body.run;
    await new Promise((go) => setTimeout(go, POLL_MS));
    said = await get(`dlq/redrives/${name}`).catch((error) => error);
  }
}

function status(body) {
  const did = body.dry_run ? "would be sent" : "sent";
  const lines = [];
  const tone = { failed: "bad", stopped: "warn", done: "good" }[body.state] ?? "soft";
  const of = body.state === "running" && body.remaining !== null ? `, ${count(body.remaining)} offsets to read` : "";
  lines.push(el("p", { class: tone }, `${plural(body.redriven, "message")} ${did}, of ${count(body.read)} read${of}.`));
  if (body.message) lines.push(el("p", { class: "bad" }, body.message));
  if (body.filtered) lines.push(el("p", { class: "soft" }, `${count(body.filtered)} do not match.`));
  for (const [why, reasons] of Object.entries(body.left)) {
    const parts = Object.entries(reasons).map(([reason, number]) => `${reason || NONE} ${count(number)}`);
    lines.push(el("p", { class: "warn" }, `Stay on the DLQ, ${why}: ${parts.join(", ")}.`));
  }
  if (body.handled_before) lines.push(el("p", { class: "soft" }, `This run has handled ${plural(body.handled_before, "offset")} before, and sends nothing twice.`));
  lines.push(el("p", { class: "soft" }, "Run: ", el("code", {}, body.run)));
  return lines;
}
