// Finding one message, listing many, page by page.

import { get, token, Unreachable } from "./api.js";
import { byId, el, say } from "./dom.js";
import { openEntry } from "./entry.js";
import { clock, count, distance, listed, now, plural, stateOf, utc } from "./format.js";

const TIMER_ID = /^\d+-\d+-\d+$/;

let filter = {};
let cursors = [""];
let turn = 0;
let tokenDialog = () => {};

/** Start with the dialog in which the token is entered. */
export function startMessages(openToken) {
  tokenDialog = openToken;
  byId("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = byId("target").value.trim();
    if (text) openEntry(TIMER_ID.test(text) || text.startsWith("id:") ? text : `id:${text}`);
  });
  byId("when").addEventListener("change", () => {
    for (const field of document.querySelectorAll(".between")) field.hidden = byId("when").value !== "between";
  });
  byId("filter").addEventListener("submit", (event) => {
    event.preventDefault();
    list();
  });
  byId("forth").addEventListener("click", () => show(cursors.length));
  byId("back").addEventListener("click", () => show(cursors.length - 2));
  byId("messages").tBodies[0].addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) openEntry(button.value);
  });
}

/** List from the beginning by what the form says. */
export function list() {
  filter = wanted();
  cursors = [""];
  return show(0);
}

/** Show the page again after a change. */
export const relist = () => show(cursors.length - 1);

function wanted() {
  const nowMs = now();
  const when = byId("when").value;
  const made = { origin: byId("origin").value.trim(), partition: byId("partition").value, limit: byId("limit").value };
  for (const field of ["exception", "group", "key", "header"]) made[field] = byId(field).value.trim();
  if (when === "overdue") made.due_to = nowMs;
  else if (when === "between") {
    made.due_from = millis("from");
    made.due_to = millis("to");
  } else if (when !== "any") {
    made.due_from = nowMs;
    made.due_to = nowMs + Number(when);
  }
  return made;
}

function millis(id) {
  const value = byId(id).value;
  return value ? new Date(value).getTime() : "";
}

let nextCursor = null;

async function show(page) {
  const mine = ++turn;
  if (page >= cursors.length) cursors.push(nextCursor);
  else cursors.length = Math.max(1, page + 1);
  const query = new URLSearchParams(Object.entries({ ...filter, cursor: cursors[page] }).filter(([, value]) => value !== "" && value !== undefined));
  const said = await get(`pending/messages?${query}`).catch((error) => error);
  if (mine !== turn) return;
  if (said instanceof Unreachable || said.status !== 200) {
    const reason = said.status === 401 && token.get() ? "The API token is wrong." : said.message ?? said.body.message;
    say(byId("listed"), `Not listed: ${reason}`);
    if (said.status === 401) byId("listed").append(" ", el("button", { type: "button", onclick: tokenDialog }, "Enter the token"));
    byId("messages").hidden = true;
    byId("pages").hidden = true;
    return;
  }
  nextCursor = said.body.cursor;
  fill(said.body);
  byId("pages").hidden = page === 0 && nextCursor === null;
  byId("back").disabled = page === 0;
  byId("forth").disabled = nextCursor === null;
  say(byId("page"), `Page ${count(page + 1)}`);
}

function fill({ messages, examined, complete, missing, cursor }) {
  const nowMs = now();
  byId("messages").hidden = messages.length === 0;
  byId("messages").tBodies[0].replaceChildren(...messages.map((each) => row(each, nowMs)));
  const found = messages.length ? `${plural(messages.length, "message")}${cursor ? " on this page" : ""}, as of ${clock(nowMs, nowMs)}.` : "";
  const none = cursor ? `None of the ${plural(examined, "message")} looked at; the next page reads further.` : "No pending message matches.";
  const lacking = complete ? "" : ` Messages of partition${missing.length === 1 ? "" : "s"} ${listed(missing)} are missing: no owner answers.`;
  say(byId("listed"), (found || none) + lacking);
}

function row(each, nowMs) {
  return el(
    "tr",
    {},
    el("td", { title: utc(each.due_ms) }, el("span", { class: "nowrap" }, distance(each.due_ms, nowMs)), " ",
      el("span", { class: "soft nowrap wide" }, clock(each.due_ms, nowMs))),
    el("td", { class: "name", title: each.origin }, el("bdi", {}, each.origin)),
    el("td", {}, el("button", { type: "button", class: "link-button", value: each.id }, each.id)),
    el("td", { class: "name wide", title: each.retry_id }, each.retry_id === null ? el("span", { class: "soft" }, "–") : el("bdi", {}, each.retry_id)),
    el("td", { class: "number wide" }, `${count(each.attempt)} of ${count(each.limit)}`),
    el("td", { class: "wide" }, stateOf(each, nowMs)),
  );
}
