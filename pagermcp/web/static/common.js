// What the pages share. Nothing here needs a secure context, so all of it works over plain http, too.
//
// A block of code gets its copy button by itself: <figure class="code"><figcaption>Name</figcaption><pre><code>…
// Anything else: <button type="button" data-copy="ID">Copy</button> copies the text of the element with that id.

/** An element with a class and a text. Text from others is only ever set as text. */
export function part(tag, name = "", text = "") {
  const made = document.createElement(tag);
  if (name) made.className = name;
  made.textContent = text;
  return made;
}

// ---- what this tab remembers: sessionStorage, or nothing where the browser keeps nothing

export const KEY = "pagermcp key"; // the mailbox whose key the start page made, or the inbox was given
export const NUMBER = "pagermcp number"; // of the same mailbox

export function kept(name) {
  try {
    return sessionStorage.getItem(name) ?? "";
  } catch {
    return "";
  }
}

/** Keep a text for this tab; an empty one is forgotten. False: the browser keeps nothing. */
export function keep(name, text) {
  try {
    if (text) sessionStorage.setItem(name, text);
    else sessionStorage.removeItem(name);
    return true;
  } catch {
    return false;
  }
}

// ---- the relay

/**
 * Ask the relay; its answer's JSON. path: relative, as in "healthz". options: those of fetch, and
 * key: the key or number for the Authorization header; json: a value for the body; reviver: for JSON.parse.
 * Throws an Error that can be shown: its message has the relay's hint in it. It also has `status` (0 when the relay
 * can't be reached), `code`, `hint` and `answer`. An abort by `signal` is thrown as it is. A key that can't be in a
 * header is refused as the relay refuses one that is none.
 */
export async function ask(path, { key, json, reviver, ...options } = {}) {
  const headers = new Headers(options.headers);
  if (/[^\x20-\x7e]/.test(key ?? "")) throw failure("what was given has characters in it that no key has", "copy it again", 401, "unauthorized");
  if (key) headers.set("Authorization", `Bearer ${key}`);
  if (json !== undefined) {
    headers.set("Content-Type", "application/json");
    options = { method: "POST", ...options, body: JSON.stringify(json) };
  }
  let response;
  let answer = null;
  try {
    response = await fetch(path, { cache: "no-store", ...options, headers });
    answer = JSON.parse(await response.text(), reviver);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    if (!response) throw failure("the relay can't be reached", "is it running, and are you online?", 0, "unreachable");
    if (response.ok) throw failure("the answer was cut short", "try again", 0, "cut");
  }
  if (response.ok) return answer;
  const { message, hint, code } = answer?.error ?? {};
  throw failure(message ?? `the answer was ${response.status}`, hint ?? "", response.status, code ?? "", answer);
}

function failure(message, hint, status, code, answer = null) {
  return Object.assign(new Error(hint ? `${message} (${hint})` : message), { status, code, hint, answer });
}

// ---- hidden tabs. A browser has six connections to one relay for all tabs, so one that is hidden keeps none waiting.

export const HIDDEN_MS = 10000; // so long a hidden tab rests between two questions

/** A controller whose signal also aborts when this tab gets hidden. Abort it when the question is over. */
export function whileShown() {
  const controller = new AbortController();
  const hide = () => document.hidden && controller.abort();
  document.addEventListener("visibilitychange", hide, { signal: controller.signal });
  return controller;
}

/** Rest for so long; a tab that comes to the front, or gets online, goes on at once. */
export function rest(ms) {
  return new Promise((resolve) => {
    const over = new AbortController();
    const end = () => {
      clearTimeout(timer);
      over.abort();
      resolve();
    };
    const timer = setTimeout(end, ms);
    window.addEventListener("online", end, { signal: over.signal });
    document.addEventListener("visibilitychange", () => document.hidden || end(), { signal: over.signal });
  });
}

// ---- times

const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });
const STEPS = [
  ["second", 60],
  ["minute", 60],
  ["hour", 24],
  ["day", Infinity],
];

/** How long ago, or how soon, in words: "5 sec. ago", "in 2 hr.", "yesterday". seconds: how old; negative: to come. */
export function ago(seconds) {
  let value = seconds;
  if (Math.abs(value) < 1) return "now";
  for (const [unit, size] of STEPS) {
    if (Math.abs(value) < size) return RELATIVE.format(-Math.trunc(value), unit);
    value /= size;
  }
}

/** A <time> that says how long ago, and when exactly in its title. at: a Date, or a text like the relay's. */
export function time(at) {
  const date = new Date(at);
  const made = part("time", "", ago((Date.now() - date) / 1000));
  made.dateTime = date.toISOString();
  made.title = date.toLocaleString();
  return made;
}

/** Say again, in all of the document's <time title=…>, how long ago it is. */
export function refreshTimes(root = document) {
  for (const one of root.querySelectorAll("time[title]")) {
    const text = ago((Date.now() - new Date(one.dateTime)) / 1000);
    if (one.textContent !== text) one.textContent = text;
  }
}

// ---- saying, and copying

/** Have a screen reader say this. */
export function announce(text) {
  const live = document.getElementById("live");
  live.textContent = ""; // so that the same text is said again
  setTimeout(() => (live.textContent = text), 50);
}

/** Copy a text, also over plain http, where there is no navigator.clipboard. False: the browser does not let us. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {} // there is none, or it was refused
  const before = document.activeElement;
  const area = part("textarea", "visually-hidden");
  area.value = text;
  area.readOnly = true;
  document.body.append(area);
  area.select();
  let done = false;
  try {
    done = document.execCommand("copy");
  } catch {}
  area.remove();
  before?.focus({ preventScroll: true });
  return done;
}

/** Give each block of code in `root` that has none a button that copies it. */
export function addCopyButtons(root = document) {
  for (const figure of root.querySelectorAll("figure.code:not(:has(button.copy))")) {
    const button = part("button", "copy", "Copy");
    button.type = "button";
    const name = figure.querySelector("figcaption")?.textContent.trim();
    if (name) button.append(part("span", "visually-hidden", ` ${name}`));
    figure.append(button);
  }
}

const back = new WeakMap(); // button → the timer that gives it its text back

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy, button[data-copy]");
  if (!button) return;
  const id = button.dataset.copy;
  const source = id ? document.getElementById(id) : button.closest("figure").querySelector("code");
  const done = await copy(source.value ?? source.textContent);
  const word = button.firstChild; // what is said to a screen reader alone stands behind it
  clearTimeout(back.get(button));
  word.textContent = done ? "Copied" : "Select it by hand";
  button.classList.toggle("copied", done);
  const what = button.querySelector(".visually-hidden")?.textContent.trim();
  announce(done ? ["Copied", what].filter(Boolean).join(": ") : "It could not be copied");
  if (!done) getSelection().selectAllChildren(source);
  back.set(
    button,
    setTimeout(() => {
      word.textContent = "Copy";
      button.classList.remove("copied");
    }, 2500),
  );
});

addCopyButtons();
