// Asks for confirmation, makes the change, and explains the result.

import { change, get, messagePath, newControlId, originPath, token, Unreachable } from "./api.js";
import { byId, el, say } from "./dom.js";
import { listed, plural } from "./format.js";

const ASK_AGAIN_MS = [1000, 2000, 4000, 8000, 15000];
const DONE = "The outcome is committed to Kafka.";
const UNTOUCHED = "Nothing was changed.";
const ASKING = "This dialog looks for its outcome while it is open.";

const listeners = new Set();
let asked = 0;
let current = null;
let opener = null;
let working = false;

/** Call the listener with the target or origin of every change that has an answer. */
export const onChanged = (listener) => listeners.add(listener);

export function startChange(openToken) {
  const dialog = byId("change");
  byId("change-back").addEventListener("click", () => dialog.close());
  dialog.addEventListener("cancel", (event) => {
    if (working) event.preventDefault();
  });
  dialog.addEventListener("close", () => {
    asked += 1;
    current = null;
    // The button may be gone with what it acted on.
    const place = opener?.isConnected ? opener : byId("entry").open ? byId("entry-title") : byId("content");
    place.focus();
  });
  byId("change-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (current) carryOut(current, openToken);
  });
}

function ask(question) {
  current = question;
  asked += 1;
  opener = document.activeElement;
  say(byId("change-title"), question.title);
  byId("change-text").replaceChildren(...question.text);
  byId("change-text").hidden = false;
  byId("change-fields").replaceChildren(...(question.fields ?? []));
  byId("change-answer").replaceChildren();
  const button = byId("change-do");
  say(button, question.verb);
  button.className = question.danger ? "danger" : "first";
  button.hidden = button.disabled = false;
  say(byId("change-back"), "Back");
  byId("change").showModal();
  (byId("change-fields").querySelector("input:checked") ?? byId("change-back")).focus();
}

async function carryOut(question, openToken) {
  const turn = asked;
  const answer = byId("change-answer");
  const button = byId("change-do");
  let request;
  try {
    request = question.request();
  } catch (mistake) {
    answer.replaceChildren(words("bad", mistake.message));
    return;
  }
  current = null;
  button.disabled = byId("change-back").disabled = working = true;
  answer.replaceChildren(words("soft", "Asking the owner …"));
  const [method, path, body] = request;
  const controlId = newControlId();
  const said = await change(method, `${path}?control_id=${controlId}`, body).catch((error) => error);
  byId("change-back").disabled = working = false;
  if (turn !== asked) return;
  say(byId("change-title"), question.title.replace("?", ""));
  byId("change-fields").replaceChildren();
  button.hidden = true;
  say(byId("change-back"), "Close");
  byId("change-back").focus();
  show(said, question, answer, openToken);
  if (mayRepeat(said)) {
    current = { ...question, fields: [], request: () => request };
    say(button, "Try again");
    button.hidden = button.disabled = false;
  }
  listeners.forEach((listener) => listener(question.subject));
  if (isOpen(said)) await follow(controlId, question, answer, turn);
}

/** Whether nothing was changed for now: the instance has too much to do, or reaches no broker. */
const mayRepeat = (said) => said.status === 429 || (said.status >= 500 && said.body.applied === "no");

/** Whether the change may still act: its id has the outcome then. */
const isOpen = (said) => said instanceof Unreachable || said.status === 202 || (said.status >= 500 && !mayRepeat(said));

function show(said, question, answer, openToken) {
  const lines = explain(said, question);
  answer.replaceChildren(...lines);
  if (said.status === 401) answer.append(el("button", { type: "button", onclick: openToken }, "Enter the token"));
}

/** Ask for the outcome of a change until there is one, or the dialog is closed. */
async function follow(controlId, question, answer, turn) {
  for (let time = 0; ; time += 1) {
    await new Promise((go) => setTimeout(go, ASK_AGAIN_MS[Math.min(time, ASK_AGAIN_MS.length - 1)]));
    if (turn !== asked) return;
    const said = await get(`control/${encodeURIComponent(controlId)}`).catch((error) => error);
    if (turn !== asked) return;
    if (said.status !== 200 || !said.body.result) continue;
    answer.replaceChildren(...explain({ status: statusOf(said.body.result), body: said.body }, question));
    listeners.forEach((listener) => listener(question.subject));
    return;
  }
}

const statusOf = (result) => ({ "not-pending": 404, "origin-paused": 409, "bad-request": 400 })[result] ?? 200;

const words = (tone, ...text) => el("p", { class: tone }, ...text);

/** Return what an answer means, for a person. */
function explain(said, question) {
  if (said instanceof Unreachable) {
    return [
      words("bad", "No answer: the change may or may not have been made."),
      words("soft", `The instance gave ${said.message}. ${ASKING}`),
    ];
  }
  if (said instanceof Error) throw said;
  const { status, body } = said;
  const message = body.detail || body.message || "";
  switch (status) {
    case 200:
      return [words("good", question.done(body)), words("soft", DONE)];
    case 202:
      return [
        words("warn", "Not answered yet."),
        words("soft", `The command is in the retry topic; the owner of ${missing(body)} will carry it out. `
          + "This dialog keeps asking while it is open."),
        words("soft", "Control id: ", el("code", {}, body.control_id)),
      ];
    case 404:
      return [words("warn", "The message is not pending: it has fired, was cancelled, or never existed."), words("soft", UNTOUCHED)];
    case 409:
      return [
        words("warn", "Its origin is paused or cannot be reached."),
        words("soft", `The message stays pending. ${UNTOUCHED}${message ? ` ${message}` : ""}`),
      ];
    case 401:
      return [words("bad", token.get() ? "The API token is wrong." : "This needs the API token."), words("soft", UNTOUCHED)];
    case 400:
    case 403:
      return [words("bad", message || "The change was refused."), words("soft", UNTOUCHED)];
    case 429:
      return [words("bad", message || "Too many requests at once."), words("soft", UNTOUCHED)];
    case 500:
    case 502:
    case 503:
    case 504:
      return [
        words("bad", message || "The change cannot be made now."),
        words("soft", mayRepeat(said) ? UNTOUCHED : `The change may or may not have been made. ${ASKING}`),
      ];
    default:
      return [words("bad", `Unexpected answer ${status}: ${message}`), words("soft", "Check before you repeat it.")];
  }
}

const missing = (body) =>
  body.missing?.length ? `partition${body.missing.length === 1 ? "" : "s"} ${listed(body.missing)}` : "its partition";

// What can be asked

const what = (target, number) => (number > 1 ? `all ${plural(number, "message")} of ${target}` : target);

/**
 * Ask to cancel the messages of a target.
 * @param {{target: string, number: number, origin: string}} subject `number` messages were pending when it was shown
 */
export function askCancel(subject) {
  const many = subject.number > 1;
  ask({
    subject: subject.target,
    title: many ? `Cancel ${plural(subject.number, "message")}?` : "Cancel this message?",
    text: [code(subject.target), many ? " will never be delivered. " : ` will never be delivered to ${subject.origin}. `, "This cannot be undone."],
    verb: many ? "Cancel all" : "Cancel the message",
    danger: true,
    request: () => ["DELETE", messagePath(subject.target)],
    done: (body) => `Cancelled: ${plural(body.count, "message")} will not be delivered.`,
  });
}

export function askFire(subject) {
  ask({
    subject: subject.target,
    title: subject.number > 1 ? `Fire ${plural(subject.number, "message")} now?` : "Fire this message now?",
    text: [code(what(subject.target, subject.number)), ` goes to ${subject.origin} now, before it is due.`],
    verb: "Fire now",
    request: () => ["POST", messagePath(subject.target, "/fire")],
    done: (body) => `Fired: ${plural(body.count, "message")} sent to ${subject.origin}.`,
  });
}

export function askReschedule(subject) {
  const choices = [["60000", "in 1 minute"], ["600000", "in 10 minutes"], ["3600000", "in 1 hour"], ["86400000", "in 1 day"]];
  const at = el("input", { type: "datetime-local", step: "1", id: "reschedule-at", "aria-label": "Date and time" });
  const radios = choices.map(([value, text], place) => choice(value, text, place === 1));
  const other = choice("at", "at …", false);
  at.addEventListener("input", () => (other.querySelector("input").checked = true));
  const picked = () => byId("change-fields").querySelector("input:checked").value;
  ask({
    subject: subject.target,
    title: subject.number > 1 ? `Reschedule ${plural(subject.number, "message")}?` : "Reschedule this message?",
    text: [code(what(subject.target, subject.number)), " fires at the new time instead."],
    fields: [el("fieldset", {}, el("legend", {}, "New time"), ...radios, other, at)],
    verb: "Reschedule",
    request: () => {
      if (picked() !== "at") return ["PATCH", messagePath(subject.target), { delay_ms: Number(picked()) }];
      const due = new Date(at.value).getTime();
      if (!Number.isFinite(due) || due < 0) throw new Error("Enter a date and time.");
      return ["PATCH", messagePath(subject.target), { due_ms: due }];
    },
    done: (body) => `Rescheduled: ${plural(body.count, "message")}.`,
  });
}

function choice(value, text, checked) {
  return el("label", { class: "choice" }, el("input", { type: "radio", name: "when", value, checked }), ` ${text}`);
}

const unknown = (body) => (body.known === false ? " Check the name of the topic." : "");

export function askPause(origin) {
  ask({
    subject: origin.origin,
    title: "Pause this origin?",
    text: [`Nothing fires to `, code(origin.origin), ` until you resume it; ${plural(origin.pending, "message")} and all new ones for it stay pending.`],
    verb: "Pause",
    request: () => ["PUT", originPath(origin.origin, "pause")],
    done: (body) => `Paused: ${plural(body.count, "message")} pending.${unknown(body)}`,
  });
}

export function askResume(origin) {
  ask({
    subject: origin.origin,
    title: "Resume this origin?",
    text: [`What is due for `, code(origin.origin), " fires again, spread over the next minutes so that its consumers are not flooded."],
    verb: "Resume",
    request: () => ["PUT", originPath(origin.origin, "resume")],
    done: (body) => `Resumed: ${plural(body.count, "message")} fire when they are due.${unknown(body)}`,
  });
}

export function askPauseAll() {
  ask({
    subject: "*",
    title: "Pause all origins?",
    text: ["Nothing fires to any origin until you resume all. Messages are still ingested and stored."],
    verb: "Pause all",
    danger: true,
    request: () => ["PUT", originPath("*", "pause")],
    done: (body) => `Paused: ${plural(body.count, "message")} pending in all.`,
  });
}

export function askResumeAll() {
  ask({
    subject: "*",
    title: "Resume all origins?",
    text: ["What is due fires again, spread over the next minutes. Origins that were paused by name stay paused."],
    verb: "Resume all",
    request: () => ["PUT", originPath("*", "resume")],
    done: () => "Resumed.",
  });
}

const code = (text) => el("code", {}, el("bdi", {}, text));
