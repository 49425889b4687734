// The calls of this page. A token stays in the tab's session and goes nowhere but to this server.

const KEY = "retry-sidecar-token";
const TIMEOUT_MS = 8000;
const CHANGE_TIMEOUT_MS = 15000;

/** No answer: the change may or may not have been made. */
export class Unreachable extends Error {}

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** Return status and JSON body of a call. Throws Unreachable. */
export async function call(method, path, { body, timeoutMs = TIMEOUT_MS } = {}) {
  const headers = { accept: "application/json" };
  if (token.get()) headers.authorization = `Bearer ${token.get()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  try {
    const answer = await fetch(`../${path}`, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(timeoutMs),
      cache: "no-store",
      redirect: "error",
    });
    return { status: answer.status, body: await answer.json() };
  } catch (cause) {
    throw new Unreachable(cause.name === "TimeoutError" ? `no answer within ${timeoutMs / 1000} s` : "no answer");
  }
}

/** Return an id for a change: it acts once, and its outcome is found when the answer is lost. */
export function newControlId() {
  const random = crypto.getRandomValues(new Uint8Array(8));
  return `${Date.now()}-${Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

export const get = (path) => call("GET", path);

/** Make a change; the server itself waits some seconds for the owner's answer. */
export const change = (method, path, body) => call(method, path, { body, timeoutMs: CHANGE_TIMEOUT_MS });

/** Return the path of a message, or of what is done to it. */
export function messagePath(target, rest = "") {
  return `pending/messages/${encodeURIComponent(target)}${rest}`;
}

export const originPath = (origin, what) => `origins/${encodeURIComponent(origin)}/${what}`;
