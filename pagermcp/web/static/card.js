// How a page looks in the inbox. All of it comes from others: it is only ever set as text, and cut where it is long.

import { part, time } from "./common.js";

const STALE_SECONDS = 900;
const LONG = 600; // characters of a field
const LINES = 25;
const FIELDS = 20;
const TITLE = 120;
const SHOWN_ABOVE = ["JOB_ID", "status", "message"];

const WORDS = {
  good: "ok|success|succeeded|successful|passed|done|completed|recovered|resolved|healthy|up",
  bad: "fail|failed|failure|error|errored|lost|critical|fatal|alerting|firing|down|crashed|dead",
  warn: "warn|warning|degraded|timeout|timed out|cancelled|canceled|aborted|stale|flaky",
};
const STATES = { waiting: "info", leased: "warn", acknowledged: "good", dead: "bad" };

// What turns the direction of text, or can't be seen, is shown as its escape. So what is read is what was sent.
const UNSEEN =
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\p{Cs}\u{e0000}-\u{e0fff}]/gu;

/** A text from others, as it may be shown. */
export function visible(text) {
  const escaped = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return text.replaceAll("\r\n", "\n").replace(UNSEEN, (found) => found.split("").map(escaped).join(""));
}

function text(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

function cut(value) {
  const whole = text(value).trimEnd();
  const lines = whole.slice(0, LONG).split("\n", LINES).join("\n");
  return visible(lines.length < whole.length ? `${lines}… (${whole.length.toLocaleString("en")} characters)` : whole);
}

function oneLine(value, most) {
  const line = visible(text(value).slice(0, 5 * most)).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most)}…` : line;
}

/** What a page is called: its job, its run, or else how its message begins. */
export function titleOf(page) {
  const { JOB_ID, run, message } = page.payload ?? {};
  for (const name of [JOB_ID, run, message]) {
    const line = name === undefined || name === null ? "" : oneLine(name, TITLE);
    if (line) return line;
  }
  return page.payload ? `Page ${page.id}` : "Not a page";
}

/** What changes when a page does: its card is to be made again. */
export function signature({ handle, state, outcome, lease_expires_at, due_at }) {
  return [handle, state, outcome, lease_expires_at, due_at].join();
}

/** Whether a page that is still to be read is old by now. at: performance.now() when `page` came from the relay. */
export function isStale(page, at) {
  const open = page.state === "waiting" || page.state === "leased";
  return open && page.age_seconds + (performance.now() - at) / 1000 > STALE_SECONDS;
}

function badge(word, kind) {
  return part("span", `state ${kind}`, word);
}

function kindOf(status) {
  const word = oneLine(status, 40).toLowerCase();
  return Object.keys(WORDS).find((kind) => WORDS[kind].split("|").includes(word)) ?? "";
}

/** A time in a sentence: "archived 5 min. ago". */
function at(words, moment) {
  const made = part("span", "", `${words} `);
  made.append(time(moment));
  return made;
}

function isAlarm(page) {
  return page.state === "scheduled" && page.payload?.status === "lost" && "run" in page.payload;
}

/** What the relay says of a page. */
function told(page) {
  const parts = [];
  if (page.created_at) parts.push(at(isAlarm(page) ? "set" : "sent", page.created_at));
  if (page.attempt > 1) parts.push(part("span", "", `attempt ${page.attempt}`));
  if (page.state === "leased") parts.push(at("lease ends", page.lease_expires_at));
  if (page.state === "scheduled") parts.push(at(isAlarm(page) ? "unless it reports, an alarm" : "due", page.due_at));
  if (page.state === "waiting" && page.expires_at) parts.push(at("expires", page.expires_at));
  if (page.archived_at) parts.push(at(page.outcome, page.archived_at));
  if (page.died_at) parts.push(at("died", page.died_at));
  if (page.replay_of) parts.push(part("span", "", `a copy of ${page.replay_of}`));
  if (page.recovered) parts.push(part("span", "", `recovered, ${page.late_seconds} s late`));
  parts.push(part("span", "address", page.handle));
  return parts.flatMap((one, index) => (index ? [" · ", one] : [one]));
}

/** What else the sender has said. */
function fields(payload) {
  const list = part("dl");
  const names = Object.keys(payload).filter((name) => !SHOWN_ABOVE.includes(name));
  for (const name of names.slice(0, FIELDS)) {
    const row = part("div");
    row.append(part("dt", "", oneLine(name, TITLE)), part("dd", "", cut(payload[name])));
    list.append(row);
  }
  const rest = names.length - FIELDS;
  return rest > 0 ? [list, part("p", "quiet", `and ${rest} more fields, in the raw JSON`)] : names.length ? [list] : [];
}

function button(word, what, page) {
  const made = part("button", "", word);
  made.type = "button";
  made.dataset.act = what;
  made.append(part("span", "visually-hidden", ` ${titleOf(page)}`));
  return made;
}

/** The raw JSON, when somebody wants it: it may be long. */
function raw(page) {
  const details = part("details");
  details.append(part("summary", "", "Raw JSON"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.querySelector("figure")) return;
    const figure = part("figure", "code");
    const pre = part("pre");
    pre.append(part("code", "", visible(JSON.stringify(page, null, 2))));
    pre.tabIndex = 0; // so that it can be scrolled by keys
    const copies = part("button", "copy", "Copy");
    copies.type = "button";
    copies.append(part("span", "visually-hidden", " the raw JSON"));
    figure.append(pre, copies);
    details.append(figure);
  });
  return details;
}

/** A list item that shows a page. */
export function card(page) {
  const item = part("li", "card");
  item.dataset.id = page.id;
  item.tabIndex = -1;
  const { status, message } = isAlarm(page) ? {} : (page.payload ?? {}); // what an alarm would say is not so yet
  const title = titleOf(page);
  const top = part("div", "row");
  top.append(part("h2", "", title));
  if (status !== undefined && status !== null && status !== "") {
    const kind = kindOf(status);
    if (kind) item.classList.add(`is-${kind}`);
    top.append(badge(oneLine(status, 40), kind));
  }
  const stale = badge("STALE", "stale warn");
  stale.hidden = true;
  const state = badge(isAlarm(page) ? "alarm set" : page.state, STATES[page.outcome ?? page.state] ?? "");
  state.classList.add("end");
  top.append(stale, state);
  item.append(top);
  const said = message === undefined || message === null ? "" : cut(message);
  if (said !== title) item.append(part("p", "message", said));
  if (page.why) item.append(part("p", "error", cut(page.why)));
  if (page.payload) item.append(...fields(page.payload));
  const meta = part("p", "meta quiet");
  meta.append(...told(page));
  item.append(meta);
  const tools = part("div", "tools");
  tools.append(raw(page));
  const buttons = part("div", "row");
  if (page.state === "waiting" || page.state === "leased") buttons.append(button("Acknowledge", "ack", page));
  if ((page.state === "archived" || page.state === "dead") && page.payload) buttons.append(button("Replay", "replay", page));
  tools.append(buttons);
  item.append(tools);
  return item;
}
