// The dashboard: polls the API every two seconds while the tab is visible, less often while the API does not answer.

import { get, token, Unreachable } from "./api.js";
import { onChanged, startChange } from "./change.js";
import { startDlq } from "./dlq.js";
import { byId, el, say } from "./dom.js";
import { refreshEntry, startEntry } from "./entry.js";
import { redrawCharts, showActivity, showHistogram, showKnown, showOrigins, showPartitions, showPending, showUnknown, startFigures } from "./figures.js";
import { clock, learn, now, span, zone } from "./format.js";
import { list, relist, startMessages } from "./messages.js";
import { startTheme } from "./theme.js";

const EVERY_MS = 2000;
const BACK_OFF_MAX_MS = 30_000;
const FIGURES = ["pending", "partitions", "origins", "pending/histogram", "activity"];

let timer = 0;
let failures = 0;
let answeredMs = 0;
let asking = false;
let listedOnce = false;

async function poll() {
  clearTimeout(timer);
  if (document.hidden || asking) return;
  asking = true;
  try {
    const [ready, ...answers] = await Promise.all(["readyz", ...FIGURES].map(get));
    const refused = answers.find((each) => each.status !== 200);
    failures = refused ? failures + 1 : 0;
    if (refused) stale(`This instance has no figures: ${refused.body.message}.`);
    else show(ready, answers.map((each) => each.body));
  } catch (error) {
    if (!(error instanceof Unreachable)) throw error;
    failures += 1;
    stale(`This instance cannot be reached: ${error.message}.`);
  } finally {
    asking = false;
    timer = setTimeout(poll, Math.min(BACK_OFF_MAX_MS, EVERY_MS * 2 ** Math.min(failures, 5)));
  }
}

function show(ready, [pending, partitions, origins, histogram, activity]) {
  const ahead = learn(histogram.from_ms + 500);
  say(byId("skew"), ahead ? `The instance’s clock is ${span(Math.abs(ahead))} ${ahead > 0 ? "ahead of" : "behind"} the browser’s; this page uses the instance’s.` : "");
  const nowMs = now();
  answeredMs = nowMs;
  showPending(pending, origins.origins, nowMs);
  showPartitions(partitions.partitions, nowMs);
  const paused = showOrigins(origins.origins);
  showHistogram(histogram);
  showActivity(activity);
  const incomplete = showKnown(pending, partitions.partitions, nowMs);
  const reasons = ready.status === 200 ? "" : `This instance is not ready: ${ready.body.reasons.map((each) => each.replace(/\.$/, "")).join("; ")}.`;
  notices([["bad", reasons], ["warn", paused], ["warn", incomplete]]);
  document.body.classList.remove("stale");
  link("good", "Live");
  if (!listedOnce) {
    listedOnce = true;
    list();
  }
}

function stale(why) {
  const wait = span(Math.min(BACK_OFF_MAX_MS, EVERY_MS * 2 ** Math.min(failures, 5)));
  document.body.classList.toggle("stale", answeredMs > 0);
  const since = answeredMs ? ` The page shows the figures of ${clock(answeredMs, now())}.` : "";
  showUnknown(answeredMs ? `figures of ${clock(answeredMs, now())}` : "");
  notices([["bad", why + since]], el("button", { type: "button", onclick: poll }, "Try now"));
  link("bad", `No answer, retry in ${wait}`);
}

function link(tone, text) {
  byId("link").className = `link state ${tone}`;
  say(byId("link"), text);
}

let noticed = "";

function notices(list, ...more) {
  const wanted = list.filter(([, text]) => text);
  const key = JSON.stringify(wanted).replaceAll(/\d+( \d+)?/g, "");
  const place = byId("notices");
  if (key === noticed) {
    // Ages that grow are no news to a screen reader.
    wanted.forEach(([, text], at) => say(place.children[at].firstChild, text));
    return;
  }
  noticed = key;
  place.replaceChildren(...wanted.map(([tone, text], at) => el("p", { class: `notice ${tone}` }, el("span", {}, text), ...(at ? [] : more))));
}

function openToken() {
  byId("token-value").value = token.get();
  byId("token").showModal();
  byId("token-value").focus();
}

function startToken() {
  const dialog = byId("token");
  const keep = (value) => {
    token.set(value);
    say(byId("token-open"), value ? "API token: set" : "API token");
    dialog.close();
    relist();
    refreshEntry();
  };
  say(byId("token-open"), token.get() ? "API token: set" : "API token");
  byId("token-open").addEventListener("click", openToken);
  byId("token-close").addEventListener("click", () => dialog.close());
  byId("token-forget").addEventListener("click", () => keep(""));
  byId("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keep(byId("token-value").value);
  });
  dialog.addEventListener("close", () => (byId("token-value").value = ""));
}

async function introduce() {
  const said = await get("").catch(() => null);
  if (said?.status !== 200) return;
  const { commit, kafka_cluster_id: cluster } = said.body;
  const parts = [commit.replace("retry-sidecar-", ""), `at ${location.host}`, cluster && `cluster ${cluster}`];
  say(byId("instance"), parts.filter(Boolean).join(", "));
}

startFigures();
startTheme(redrawCharts);
startToken();
startChange(openToken);
startEntry(openToken);
startMessages(openToken);
startDlq(openToken);
onChanged(() => {
  refreshEntry();
  relist();
  poll();
});
say(byId("zone"), `Times are in the browser’s time zone: ${zone()}.`);
document.addEventListener("visibilitychange", poll);
introduce();
poll();
