// The figures that are polled: totals, what is known, charts, origins, partitions.

import { Bars } from "./charts.js";
import { askPause, askPauseAll, askResume, askResumeAll } from "./change.js";
import { byId, el, keepRows, say } from "./dom.js";
import { clock, count, distance, listed, minuteOf, now, plural, span, utc } from "./format.js";

const ORIGINS_SHOWN = 12;
const EVERY = "*";
const AGE_MAX_MS = 10_000;
const SPAN_TITLES = { "1m": "Next minute", "1h": "Next hour", "1d": "Next day" };

const due = new Map();
const hour = {};
const origins = new Map();
const partitions = new Map();
let allOrigins = false;
let lastOrigins = [];
let everyOrigin = null;

export function startFigures() {
  for (const [name, title] of Object.entries(SPAN_TITLES)) {
    const chart = new Bars(title, "due", "due");
    due.set(name, chart);
    byId("due-charts").append(chart.root);
  }
  const tones = [["fired", "Fired"], ["late", "Fired late"], ["dead_lettered", "Dead-lettered"]];
  for (const [name, title] of tones) {
    hour[name] = new Bars(title, name, title.toLowerCase());
    byId("hour-charts").append(hour[name].root);
  }
  byId("origins-all").addEventListener("click", () => (everyOrigin ? askResumeAll() : askPauseAll()));
  byId("origins-more").addEventListener("click", () => {
    allOrigins = !allOrigins;
    showOrigins(lastOrigins);
  });
}

export function redrawCharts() {
  for (const chart of [...due.values(), ...Object.values(hour)]) chart.redraw();
}

export function showPending(pending, origins, nowMs) {
  say(byId("total"), count(pending.total));
  say(byId("overdue"), count(pending.overdue));
  const deferred = Math.min(pending.overdue, origins.reduce((sum, each) => sum + each.deferred, 0));
  byId("overdue").className = `big ${pending.overdue > deferred ? "bad" : deferred ? "warn" : ""}`;
  say(byId("deferred"), deferred ? `${count(deferred)} deferred: origin closed` : "");
  const next = pending.next_due_ms;
  say(byId("next"), next === null ? "nothing" : next <= nowMs ? `${span(nowMs - next)} ago` : distance(next, nowMs));
  say(byId("next-at"), next === null ? "" : clock(next, nowMs));
  byId("next-at").title = next === null ? "" : utc(next);
  document.title = `${count(pending.total)} pending · Retry Sidecar`;
}

/** Show how complete the figures are; return the sentence for the notice, empty when they are complete. */
export function showKnown(pending, list, nowMs) {
  const unknown = list.filter((each) => !isKnown(each, nowMs));
  const known = byId("known");
  known.classList.toggle("bad", !pending.complete);
  say(known, pending.complete ? `All ${plural(list.length, "partition")}` : "Incomplete");
  const age = Math.max(0, nowMs - pending.as_of_ms);
  say(byId("age"), age < 2000 ? "up to date" : `oldest figure ${span(age)} old`);
  if (pending.complete) return "";
  if (!unknown.length) return "Incomplete: the number of input partitions is not known yet.";
  const one = unknown.length === 1;
  const names = unknown.map((each) => `${each.partition} (${why(each, nowMs)})`);
  const more = names.length > 6 ? [...names.slice(0, 6), `${names.length - 6} more`] : names;
  return `Incomplete: partition${one ? "" : "s"} ${listed(more)}. The totals include ${one ? "its" : "their"} last known figures.`;
}

/** Show that there are no current figures. */
export function showUnknown(age) {
  byId("known").classList.add("bad");
  say(byId("known"), "Unknown");
  say(byId("age"), age);
}

function isKnown(partition, nowMs) {
  return partition.owner !== null && partition.as_of_ms !== null && nowMs - partition.as_of_ms < AGE_MAX_MS;
}

function why(partition, nowMs) {
  const age = partition.as_of_ms === null ? "no figure" : `figure ${span(nowMs - partition.as_of_ms)} old`;
  return `${partition.owner === null ? "no owner" : partition.state}, ${age}`;
}

export function showHistogram(histogram) {
  for (const each of histogram.spans) {
    const from = (at) => histogram.from_ms + at * each.bar_ms;
    const label = each.span === "1m"
      ? (at) => `in ${(at * each.bar_ms) / 1000}–${((at + 1) * each.bar_ms) / 1000} s`
      : (at) => `${minuteOf(from(at))}–${minuteOf(from(at + 1))}`;
    const axis = each.span === "1m" ? (at) => (at ? `${(at * each.bar_ms) / 1000} s` : "now") : (at) => minuteOf(from(at));
    const bars = each.counts.map((number, at) => ({ label: label(at), short: axis(at), count: number }));
    due.get(each.span)?.show(bars, each.after ? `${count(each.after)} later` : "");
  }
}

export function showActivity(activity) {
  for (const [name, chart] of Object.entries(hour)) {
    chart.show(
      activity[name].map((number, at) => {
        const time = minuteOf(activity.from_ms + at * activity.minute_ms);
        return { label: `at ${time}`, short: time, count: number };
      }),
      name === "late" ? `more than ${span(activity.late_after_ms)} after due` : "",
    );
  }
}

/** Show the origins; return the sentence for the notice, empty when the group is neither paused nor stopped. */
export function showOrigins(all, nowMs = now()) {
  lastOrigins = all;
  everyOrigin = all.find((each) => each.origin === EVERY && each.state !== "open") ?? null;
  say(byId("origins-all"), everyOrigin ? "Resume all …" : "Pause all …");
  const list = all.filter((each) => each.origin !== EVERY);
  const order = [...list].sort((a, b) => (a.state === "open") - (b.state === "open") || b.pending - a.pending);
  const shown = allOrigins ? order : order.slice(0, ORIGINS_SHOWN);
  say(byId("origins-count"), list.length ? count(list.length) : "");
  byId("origins-none").hidden = list.length > 0;
  byId("origins").hidden = list.length === 0;
  const more = byId("origins-more");
  more.hidden = list.length <= ORIGINS_SHOWN;
  say(more, allOrigins ? `Show the first ${ORIGINS_SHOWN}` : `Show all ${count(list.length)}`);
  const most = Math.max(1, ...list.map((each) => each.pending));
  keepRows(byId("origins").tBodies[0], origins, shown, (each) => each.origin, makeOrigin, (row, each) => {
    row.now = each;
    const closed = each.state !== "open";
    const pausedWithAll = !closed && everyOrigin !== null;
    say(row.pending, count(each.pending));
    row.share.value = each.pending / most;
    say(row.deferred, count(each.deferred));
    say(row.state, pausedWithAll ? `${everyOrigin.state} with all` : each.state);
    row.state.className = `state ${pausedWithAll || each.state === "paused" ? "warn" : closed ? "bad" : "good"}`;
    say(row.since, closed && each.since_ms ? `since ${clock(each.since_ms, nowMs)}` : heldText(each, nowMs));
    say(row.button.firstChild, each.state === "paused" ? "Resume" : "Pause");
  });
  const names = byId("origin-names");
  const wanted = list.map((each) => each.origin);
  if (wanted.join("\n") !== [...names.children].map((each) => each.value).join("\n")) {
    names.replaceChildren(...wanted.map((name) => el("option", { value: name })));
  }
  if (!everyOrigin) return "";
  const what = everyOrigin.state === "stopped" ? "The group has been stopped" : "All origins have been paused";
  return `${what} since ${clock(everyOrigin.since_ms, nowMs)}: nothing fires until you resume all.`;
}

/** Return what a rate holds back: "held to 200/s, 41,200 behind, done in 3 min 26 s"; empty when nothing is held. */
function heldText(each, nowMs) {
  if (!each.held) return "";
  return `held to ${count(each.max_per_second)}/s, ${count(each.held)} behind, done in ${span(each.held_until_ms - nowMs)}`;
}

function makeOrigin(first) {
  const row = { now: first };
  row.pending = el("span");
  // The figure beside it says the same.
  row.share = el("progress", { class: "share", max: "1", "aria-hidden": "true" });
  row.deferred = el("td", { class: "number wide" });
  row.state = el("span");
  row.since = el("span", { class: "soft since" });
  row.button = el(
    "button",
    { type: "button", onclick: () => (row.now.state === "paused" ? askResume : askPause)(row.now) },
    document.createTextNode(""),
    el("span", { class: "hidden" }, ` ${first.origin}`),
  );
  row.root = el(
    "tr",
    {},
    el("th", { scope: "row", class: "name", title: first.origin }, el("bdi", {}, first.origin)),
    el("td", { class: "number" }, row.pending, row.share),
    row.deferred,
    el("td", {}, row.state, row.since),
    el("td", { class: "number" }, row.button),
  );
  return row;
}

export function showPartitions(list, nowMs) {
  say(byId("partitions-count"), list.length ? count(list.length) : "");
  keepRows(byId("partitions").tBodies[0], partitions, list, (each) => each.partition, makePartition, (row, each) => {
    const known = isKnown(each, nowMs);
    const running = each.state === "running" && known;
    const restoring = each.state === "restoring" && known;
    row.state.className = `state ${running ? "good" : each.state === "restoring" || each.state === "assigned" ? "warn" : "bad"}`;
    say(row.state, each.state);
    row.progress.hidden = !restoring;
    row.progress.value = each.restored;
    row.progress.setAttribute("aria-label", `Restore of partition ${each.partition}`);
    const left = restoring ? `${Math.floor(each.restored * 100)} %, ${count(each.restore_remaining)} records left` : "";
    say(row.detail, known ? left || each.reason || "" : why(each, nowMs));
    say(row.owner, each.owner ?? "none");
    say(row.pending, count(each.pending));
    say(row.lag, each.lag === null ? "–" : count(each.lag));
    say(row.watermark, each.watermark_ms === null ? "nothing yet" : clock(each.watermark_ms, nowMs));
    row.watermark.title = each.watermark_ms === null ? "" : utc(each.watermark_ms);
  });
}

function makePartition(each) {
  const row = {};
  row.state = el("span");
  row.progress = el("progress", { max: "1", hidden: true });
  row.detail = el("span", { class: "soft since" });
  row.owner = el("bdi");
  row.pending = el("td", { class: "number" });
  row.lag = el("td", { class: "number" });
  row.watermark = el("td", { class: "number wide" });
  row.root = el(
    "tr",
    {},
    el("th", { scope: "row", class: "number" }, String(each.partition)),
    el("td", {}, row.state, row.progress, row.detail),
    el("td", { class: "wide owner" }, row.owner),
    row.pending,
    row.lag,
    row.watermark,
  );
  return row;
}
