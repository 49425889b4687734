// One message, or those of one retry id, in a drawer: fields, headers, payload on request, and actions.

import { get, messagePath, token, Unreachable } from "./api.js";
import { askCancel, askFire, askReschedule } from "./change.js";
import { byId, el, say } from "./dom.js";
import { clock, count, distance, listed, now, plural, stateOf, utc } from "./format.js";

const SHOWN_BYTES = 64 * 1024;

let shown = null;
let turn = 0;
let tokenDialog = () => {};
let opener = null;

export function startEntry(openToken) {
  tokenDialog = openToken;
  byId("entry-close").addEventListener("click", () => byId("entry").close());
  byId("entry").addEventListener("close", () => {
    shown = null;
    turn += 1;
    if (opener?.isConnected) opener.focus();
    else byId("target").focus();
  });
}

/** Open the drawer for a timer id, or `id:` and a retry id. */
export function openEntry(target) {
  opener = document.activeElement;
  shown = target;
  say(byId("entry-title"), target);
  byId("entry-body").replaceChildren(el("p", { class: "soft" }, "Asking the owner …"));
  if (!byId("entry").open) byId("entry").showModal();
  byId("entry-title").focus();
  return load(target);
}

/** Reload what the drawer shows. */
export function refreshEntry() {
  if (shown !== null) load(shown);
}

async function load(target, payload = false) {
  const mine = ++turn;
  const said = await get(messagePath(target, payload ? "?payload=true" : "")).catch((error) => error);
  if (mine !== turn) return;
  const body = byId("entry-body");
  if (said instanceof Unreachable) body.replaceChildren(notice("bad", `Not shown: ${said.message}.`));
  else if (said.status === 200) {
    body.replaceChildren(...drawn(target, said.body, payload));
    if (payload) (body.querySelector("pre") ?? byId("entry-title")).focus();
  }
  else if (said.status === 404) body.replaceChildren(notice("warn", said.body.message));
  else if (said.status === 401) {
    body.replaceChildren(
      notice("bad", token.get() ? "The API token is wrong." : `${payload ? "The payload" : "This"} needs the API token.`),
      el("div", { class: "row" },
        el("button", { type: "button", onclick: tokenDialog }, "Enter the token"),
        ...(payload ? [el("button", { type: "button", onclick: () => load(target) }, "Show without payload")] : [])),
    );
  } else body.replaceChildren(notice("bad", `Not shown: ${said.body.message}`));
}

export const notice = (tone, text) => el("p", { class: tone, role: "status" }, text);

function drawn(target, body, payload) {
  const several = "messages" in body;
  const messages = several ? body.messages : [body];
  const parts = [];
  if (several && !body.complete) {
    parts.push(notice("warn", `No answer for partition${body.missing.length === 1 ? "" : "s"} ${listed(body.missing)}: there may be more messages with this id.`));
  }
  if (several && body.truncated) parts.push(notice("warn", "There are more messages with this id than shown."));
  if (!messages.length) return [...parts, notice("warn", "The owners that answered have no such message.")];
  parts.push(actions(target, messages, several && body.truncated));
  const open = messages.length === 1;
  if (!open) parts.push(el("p", { class: "soft" }, `${plural(messages.length, "message")} have this id; the buttons act on all of them.`));
  for (const each of messages) parts.push(open ? message(each, payload) : folded(each, payload));
  if (!payload) parts.push(el("button", { type: "button", onclick: () => load(target, true) }, "Show key and value"));
  return parts;
}

function actions(target, messages, more) {
  const origins = [...new Set(messages.map((each) => each.origin))];
  const subject = { target, number: messages.length + (more ? 1 : 0), origin: origins.length === 1 ? origins[0] : "their origins" };
  const button = (text, act, tone) => el("button", { type: "button", class: tone, onclick: () => act(subject) }, text);
  return el("div", { class: "row actions", role: "group", "aria-label": "Actions" },
    button("Fire now …", askFire), button("Reschedule …", askReschedule), button("Cancel …", askCancel, "danger"));
}

function folded(each, payload) {
  return el("details", { class: "one" },
    el("summary", {}, el("code", {}, each.id), ` ${distance(each.due_ms, now())}`), message(each, payload));
}

function message(each, payload) {
  const nowMs = now();
  const fields = [
    ["Origin", el("bdi", {}, each.origin)],
    ["Due", moment(each.due_ms, nowMs)],
    ["State", stateOf(each, nowMs)],
    ["Attempt", `${count(each.attempt)} made, ${count(each.limit)} allowed`],
    ["Retry id", each.retry_id === null ? "none" : el("bdi", {}, each.retry_id)],
    ["Timer id", el("code", {}, each.id)],
    ["Ingested from", `partition ${each.partition}, offset ${each.offset}`],
  ];
  if (each.stored_due_ms !== each.due_ms) fields.splice(2, 0, ["Next attempt", moment(each.stored_due_ms, nowMs)]);
  if (each.first_due_ms !== each.due_ms) fields.splice(2, 0, ["First due", moment(each.first_due_ms, nowMs)]);
  const list = el("dl", { class: "fields" }, ...fields.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
  const parts = [list, headers(each.headers)];
  if (payload) parts.push(content("Key", each.key), content("Value", each.value));
  return el("div", {}, ...parts);
}

export const moment = (atMs, nowMs) =>
  el("span", {}, `${distance(atMs, nowMs)}, ${clock(atMs, nowMs)} `, el("span", { class: "soft" }, utc(atMs)));

/** Return a table of headers. */
export function headers(list) {
  const rows = list.map((each) => {
    const value = each.value !== null
      ? el("td", {}, el("bdi", {}, each.value))
      : el("td", { class: "soft" }, each.value_base64 === null || each.value_base64 === undefined ? "null" : `base64 ${each.value_base64}`);
    return el("tr", {}, el("th", { scope: "row" }, el("bdi", {}, each.name)), value);
  });
  return el("table", { class: "headers" },
    el("caption", {}, list.length ? plural(list.length, "header") : "No headers"),
    el("thead", { class: "hidden" }, el("tr", {}, el("th", { scope: "col" }, "Header"), el("th", { scope: "col" }, "Value"))),
    el("tbody", {}, ...rows));
}

/** Show bytes as text where they are UTF-8, else as base64. */
export function content(title, base64) {
  if (base64 === null || base64 === undefined) return el("p", {}, `${title}: null`);
  const bytes = Uint8Array.from(atob(base64), (each) => each.charCodeAt(0));
  let text;
  let kind = "UTF-8";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    text = base64;
    kind = "base64";
  }
  const cut = text.length > SHOWN_BYTES;
  const id = `content-${title}-${Math.random().toString(36).slice(2)}`;
  return el("section", { class: "content" },
    el("h3", { id }, `${title} `, el("span", { class: "soft" }, `${plural(bytes.length, "byte")}, ${kind}${cut ? ", its beginning" : ""}`)),
    el("pre", { tabindex: "0", "aria-labelledby": id }, cut ? text.slice(0, SHOWN_BYTES) : text));
}
