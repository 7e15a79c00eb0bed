// The room's page: the log by long poll, who is there, posting as `user`. Text from others is only ever set as text.

import { HIDDEN_MS, ask, keep, kept, part, rest, whileShown } from "./common.js";

const ME = "user";
const ROOM_KEY = "pagermcp room key"; // in sessionStorage
const WAIT_SECONDS = 50;
const EVERY_MS = 5000; // so often it is asked who is there
const SHOWN = 500; // messages on the page
const element = (id) => document.getElementById(id);
const log = element("log");

let key = kept(ROOM_KEY);
let last = 0; // the id of the latest message that was shown
let archive = false;
let away = false; // the last question to the log had no answer
let turn = 0; // rises with each change of view, so that answers to earlier questions are dropped
let controller = new AbortController(); // of the question to the log

const room = (path, options) => ask(`api/${path}`, { key, ...options });

function say(text) {
  element("state").textContent = text;
}

function tell(error) {
  if (error.status === 401 || error.status === 403) lock(true);
  say(error.status === 401 && !key ? "There is no open room here. Enter the key of one." : error.message);
}

/** Ask for the room's key, in place of what can only be done in the room; or the other way round. */
function lock(locked) {
  element("key").hidden = !locked;
  element("say").hidden = locked || archive;
  for (const id of ["agents", "view", "clear"]) element(id).hidden = locked;
}

function show(messages) {
  const atEnd = window.innerHeight + window.scrollY >= document.body.scrollHeight - 80;
  for (const message of messages) {
    const item = document.createElement("li");
    item.dataset.id = message.id;
    if (message.from.toLowerCase() === ME) item.className = "mine";
    const time = part("time", "", new Date(message.created_at).toLocaleString());
    time.dateTime = message.created_at;
    const to = part("span", "to", message.to ? ` to ${message.to}` : "");
    item.append(part("strong", "from", message.from), to, time, part("p", "body", message.body));
    log.append(item);
    last = Math.max(last, message.id);
  }
  while (log.children.length > SHOWN) log.firstChild.remove();
  if (atEnd && messages.length) log.lastChild.scrollIntoView({ block: "end" });
}

async function follow() {
  const mine = ++turn;
  controller.abort(); // or else each change of view would keep one of the browser's six connections waiting
  log.replaceChildren();
  last = 0;
  let pause = 1000;
  let begun = false;
  while (mine === turn) {
    const latest = archive ? `archived=1&limit=${SHOWN}` : `limit=${SHOWN}`;
    const query = begun ? `since=${last}&wait=${document.hidden ? 0 : WAIT_SECONDS}` : latest;
    const asking = (controller = whileShown());
    try {
      const { messages } = await room(`messages?${query}`, { signal: asking.signal });
      if (mine !== turn) return;
      away = false;
      lock(false);
      show(messages);
      say(archive ? "The archive" : "");
      if (archive) return;
      pause = 1000;
      begun = true;
      if (document.hidden) await rest(HIDDEN_MS);
    } catch (error) {
      if (mine !== turn) return;
      if (error.name === "AbortError") continue; // it was hidden
      away = true;
      tell(error);
      if (error.status === 401 || error.status === 403 || error.status === 409) return;
      await rest(pause);
      pause = Math.min(2 * pause, 30000);
    } finally {
      asking.abort();
    }
  }
}

async function look() {
  const mine = turn;
  const until = last;
  try {
    const { agents } = await room("agents");
    const text = agents.map((agent) => {
      const seen = new Date(agent.last_seen).toLocaleTimeString();
      return agent.listening ? `${agent.name} (listening)` : `${agent.name} (seen ${seen})`;
    });
    element("agents").textContent = text.join(", ") || "Nobody has been here yet.";
    element("names").replaceChildren(...agents.map((agent) => Object.assign(part("option", "", ""), { value: agent.name })));
    if (archive) return;
    const { messages } = await room("messages?since=0&limit=1"); // what was cleared, also by others, goes from the page
    if (mine !== turn) return;
    const first = messages.length ? messages[0].id : Infinity;
    for (const item of [...log.children]) {
      if (Number(item.dataset.id) < first && Number(item.dataset.id) <= until) item.remove();
    }
  } catch {} // the log says what is wrong
}

element("say").addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = element("body");
  if (!body.value.trim()) return;
  const message = { from: ME, body: body.value, ...(element("to").value.trim() && { to: element("to").value.trim() }) };
  try {
    await room("messages", { json: message });
    body.value = "";
    body.focus();
  } catch (error) {
    tell(error);
  }
});

element("body").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    element("say").requestSubmit();
  }
});

element("view").addEventListener("click", () => {
  archive = !archive;
  element("view").setAttribute("aria-pressed", String(archive));
  element("view").textContent = archive ? "Back to the room" : "Show the archive";
  element("say").hidden = archive;
  follow();
});

let unsure;
let asked = 0; // when the first click came: the second of a double click is none
element("clear").addEventListener("click", async () => {
  const button = element("clear");
  clearTimeout(unsure);
  if (button.textContent === "Clear") {
    button.textContent = "Really clear?";
    asked = Date.now();
    unsure = setTimeout(() => (button.textContent = "Clear"), 4000);
    return;
  }
  if (Date.now() - asked < 500) return;
  button.textContent = "Clear";
  try {
    await room("messages/clear", { method: "POST" });
    follow();
  } catch (error) {
    tell(error);
  }
});

element("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = element("key-text").value.trim();
  keep(ROOM_KEY, key);
  follow();
  look();
});

follow();
for (;;) {
  if (!document.hidden && !away) await look();
  await rest(EVERY_MS);
}
