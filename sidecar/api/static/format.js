// Numbers and times as people read them. Times are the browser's own zone; where it matters UTC stands beside.

const WHOLE = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const SHORT_CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });
const TIME_MAX_MS = 8.64e15;
const UNITS = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];

let aheadMs = 0;

/** Return the instance's time: a browser whose clock is wrong must not make figures look old. */
export const now = () => Date.now() + aheadMs;

/** Take over the instance's clock when it differs by more than an answer's way. */
export function learn(instanceMs) {
  const difference = instanceMs - Date.now();
  aheadMs = Math.abs(difference) > 3000 ? difference : 0;
  return aheadMs;
}

export const zone = () => Intl.DateTimeFormat().resolvedOptions().timeZone ?? "local";

export const count = (number) => WHOLE.format(number);

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** Return a length of time in its two largest units. */
export function span(ms) {
  const length = Math.max(0, ms);
  if (length < 1000) return `${Math.round(length)} ms`;
  if (length < 10_000) return `${Number((length / 1000).toFixed(1))} s`;
  const at = UNITS.findIndex(([, size]) => length >= size);
  const [unit, size] = UNITS[at];
  const whole = Math.floor(length / size);
  const [nextUnit, nextSize] = UNITS[at + 1] ?? [];
  const rest = nextUnit ? Math.floor((length - whole * size) / nextSize) : 0;
  return rest ? `${count(whole)} ${unit} ${rest} ${nextUnit}` : `${count(whole)} ${unit}`;
}

/** Return how far an instant is from now: "in 5 s", "3 min ago". */
export function distance(atMs, nowMs) {
  return atMs >= nowMs ? `in ${span(atMs - nowMs)}` : `${span(nowMs - atMs)} ago`;
}

/** Return the time of day, with the date when it is another day than today's. */
export function clock(atMs, nowMs) {
  if (Math.abs(atMs) > TIME_MAX_MS) return `${atMs} ms`;
  const date = new Date(atMs);
  const near = date.toDateString() === new Date(nowMs).toDateString();
  return near ? CLOCK.format(date) : `${DAY.format(date)}, ${CLOCK.format(date)}`;
}

export const minuteOf = (atMs) => SHORT_CLOCK.format(new Date(atMs));

/** Return an instant in UTC, to the millisecond. */
export const utc = (atMs) => (Math.abs(atMs) > TIME_MAX_MS ? `${atMs} ms` : new Date(atMs).toISOString());

/** Return numbers as a list for a sentence: "1, 2 and 3". */
export function listed(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/** Return the state of a pending message. */
export function stateOf(each, nowMs) {
  if (each.deferred) return `deferred, next attempt ${distance(each.stored_due_ms, nowMs)}`;
  return each.stored_due_ms === each.due_ms ? "pending" : `pending until ${clock(each.stored_due_ms, nowMs)}`;
}
