// The inbox: what is in a mailbox, live. It looks by GET /mailbox and GET /pages, which take nothing from whoever waits.

import { card, isStale, signature, titleOf } from "./card.js";
import { HIDDEN_MS, KEY, NUMBER, addCopyButtons, announce, ask, keep, kept, refreshTimes, rest, whileShown } from "./common.js";

const WAIT_SECONDS = 50;
const PATIENCE_MS = 70000; // then the connection is taken for dead
const GATHER_MS = 300; // changes that come close together are shown together,
const BREATHS = 4; // and for so many times as long as showing them took, so that a busy relay is not kept busy by who looks
const LONGEST_PAUSE_MS = 30000;
const PORTION = 100;
const MOST = 1000; // pages in one answer
const STEP = 50; // cards that are made at once

const element = (id) => document.getElementById(id);
const list = element("pages");

let key = kept(KEY);
let view = "any";
let pages = new Map(); // id → page, all that have come for this view
let seenAt = new Map(); // id → when it came: performance.now()
let cards = new Map(); // id → its list item, and the signature that it shows
let counts = null; // state → how many there are
let more = false; // there are older ones on the relay
let shown = STEP;
let known = null; // ids of all that had come, so as to tell what is new
let turn = 0; // rises with each key and view, so that answers to earlier questions are dropped
let polling = 0; // the same for the long poll
let controller = new AbortController(); // of the long poll

// ---- asking

/** Numbers that JavaScript can't hold keep their digits. */
function exact(name, value, context) {
  const differs = typeof value === "number" && context?.source !== undefined && String(value) !== context.source;
  return differs && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}

const relay = (path, options) => ask(path, { key, reviver: exact, ...options });

async function follow() {
  const mine = ++polling;
  controller.abort();
  let mark = "";
  let pause = 1000;
  while (mine === polling) {
    const asking = (controller = whileShown());
    const { signal } = asking;
    let late = false;
    const impatient = setTimeout(() => {
      late = true;
      asking.abort(); // with no reason: what is given as one would be thrown in place of the AbortError
    }, PATIENCE_MS);
    try {
      const told = await relay(mark && !document.hidden ? `mailbox?wait=${WAIT_SECONDS}&mark=${mark}` : "mailbox", { signal });
      if (mine !== polling) return;
      opened(told);
      const asked = performance.now();
      if (told.mark !== mark) await refresh({ signal });
      mark = told.mark;
      pause = 1000;
      fine();
      const breath = Math.min(LONGEST_PAUSE_MS, BREATHS * (performance.now() - asked));
      await rest(document.hidden ? HIDDEN_MS : Math.max(GATHER_MS, breath));
    } catch (error) {
      if (mine !== polling) return;
      if (error.name === "AbortError" && !late) continue; // it was hidden
      if (error.status === 401 || error.status === 403) return refuse(error);
      trouble(error.name === "AbortError" ? "The relay does not answer." : sentence(error));
      mark = ""; // what is shown may be old, or a part of it
      await rest(pause);
      pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
    } finally {
      clearTimeout(impatient);
      asking.abort();
    }
  }
}

/** Get the latest pages of this view again: those that were shown, as far as one answer goes, and some new ones. */
async function refresh(options) {
  const mine = turn;
  const limit = Math.min(MOST, Math.max(PORTION, pages.size + STEP));
  const answer = await relay(`pages?state=${view}&limit=${limit}`, options);
  if (mine !== turn) return;
  const oldest = answer.pages[0]?.id ?? "";
  const whole = answer.pages.length < limit;
  const joins = [...pages.keys()].some((id) => id >= oldest); // or else there are some in between that nobody has got
  const older = whole || !joins ? [] : [...pages.values()].filter((page) => page.id < oldest);
  if (whole || older.length === 0) more = !whole;
  pages = new Map([...answer.pages.toReversed(), ...older].map((page) => [page.id, page]));
  for (const page of answer.pages) seenAt.set(page.id, performance.now());
  tellNew(answer.pages);
  draw();
}

/** See what has become of one page. */
async function refreshOne({ id }) {
  const told = await relay(`receipts/${id}`);
  const page = { ...pages.get(id), ...told, handle: told.attempt === 1 ? id : `${id}.${told.attempt}` };
  if (view === "any" || view === page.state) pages.set(id, page);
  else pages.delete(id);
  draw();
}

let portion = null; // of older pages, that is on its way

async function getOlder() {
  portion ??= (async () => {
    const mine = turn;
    const oldest = [...pages.keys()].at(-1);
    const limit = element("filter").value ? MOST : PORTION;
    try {
      const answer = await relay(`pages?state=${view}&limit=${limit}&before=${oldest}`);
      if (mine !== turn) return;
      for (const page of answer.pages.toReversed()) {
        pages.set(page.id, page);
        seenAt.set(page.id, performance.now());
        known?.add(page.id);
      }
      more = answer.pages.length === limit;
    } finally {
      portion = null;
    }
  })();
  return portion;
}

function tellNew(latest) {
  const news = known && latest.filter((page) => !known.has(page.id));
  if (news?.length === 1) announce(`New page: ${titleOf(news[0])}`);
  else if (news?.length) announce(`${news.length} new pages`);
  known ??= new Set();
  for (const page of latest) known.add(page.id);
}

// ---- drawing

function matching() {
  const wanted = element("filter").value.toLowerCase().trim();
  return wanted ? [...pages.values()].filter((page) => haystack(page).includes(wanted)) : [...pages.values()];
}

const haystacks = new WeakMap();
function haystack(page) {
  if (!haystacks.has(page)) haystacks.set(page, JSON.stringify(page).toLowerCase());
  return haystacks.get(page);
}

/** Bring the list up to date. Cards of pages that have not changed stay as they are: open, focused, selected. */
function draw() {
  const found = matching();
  const wanted = found.slice(0, shown);
  const focused = document.activeElement?.closest?.("#pages > li");
  const place = focused ? [...list.children].indexOf(focused) : -1;
  const items = wanted.map(itemFor);
  const staying = new Set(items);
  for (const item of [...list.children]) {
    if (staying.has(item)) continue;
    item.remove();
    if (cards.get(item.dataset.id)?.item === item) cards.delete(item.dataset.id);
  }
  items.forEach((item, index) => {
    if (list.children[index] !== item) list.insertBefore(item, list.children[index] ?? null);
  });
  if (focused && !focused.isConnected) {
    const next = cards.get(focused.dataset.id)?.item ?? list.children[Math.min(place, list.children.length - 1)];
    (next ?? document.querySelector("#views [aria-pressed='true']")).focus({ preventScroll: true });
  }
  markStale();
  const rest = found.length > shown || more;
  element("more").hidden = !rest;
  describe(found.length);
  if (rest) fill.observe(element("more"));
}

function itemFor(page) {
  const now = signature(page);
  const before = cards.get(page.id);
  if (before?.shows === now) return before.item;
  const item = card(page);
  if (before?.item.querySelector("details[open]")) item.querySelector("details").open = true;
  cards.set(page.id, { item, shows: now });
  return item;
}

function markStale() {
  for (const [id, { item }] of cards) {
    const page = pages.get(id);
    item.querySelector(".stale").hidden = !page || !isStale(page, seenAt.get(id));
  }
}

function total(state) {
  return state === "any" ? Object.values(counts).reduce((sum, one) => sum + one, 0) : counts[state];
}

function describe(found) {
  const filter = element("filter").value.trim();
  const loaded = pages.size.toLocaleString("en");
  const within = more ? `the latest ${loaded} of ${total(view).toLocaleString("en")}` : loaded;
  element("found").textContent = filter ? `${found.toLocaleString("en")} of ${within}` : "";
  element("none").hidden = found > 0 || (more && filter !== "");
  element("how").hidden = filter !== "" || view !== "any";
  element("none-text").textContent = filter ? "No page has this in it." : view === "any" ? "No pages are here yet." : `No page is ${view} now.`;
}

// The next cards are made before one has scrolled to the end; with a filter, also older pages are looked through.
const fill = new IntersectionObserver(
  (entries) => entries.some((entry) => entry.isIntersecting) && showMore(),
  { rootMargin: "600px" },
);

async function showMore() {
  fill.unobserve(element("more")); // observed anew once it is drawn, and then told again if it is still in sight
  const mine = turn;
  const enough = shown < matching().length;
  shown += enough ? STEP : 0;
  try {
    if (!enough && more) {
      await getOlder();
      if (mine !== turn) return;
      if (matching().length > shown) shown += STEP;
    }
    draw();
  } catch (error) {
    if (mine === turn && error.status) trouble(sentence(error)); // when the relay is away, the long poll tells
  }
}

// ---- the mailbox as a whole

function opened(told) {
  keep(KEY, key);
  keep(NUMBER, told.number);
  element("key").hidden = true;
  element("key-error").textContent = "";
  element("key-text").value = "";
  element("box").hidden = false;
  element("number").textContent = told.number;
  element("curl").textContent = `curl -d 'build done' ${new URL(`to/${told.number}`, location.href)}`;
  element("waiters").textContent = told.waiters === 0 ? "Nobody waits for pages now" : told.waiters === 1 ? "One reader waits for pages" : `${told.waiters} readers wait for pages`;
  counts = told.pages;
  for (const button of element("views").children) {
    button.querySelector(".count").textContent = total(button.dataset.view).toLocaleString("en");
  }
  count(counts.waiting);
}

/** Title and icon say how many pages wait, so that it is seen when another tab is in front. */
function count(waiting) {
  const title = waiting ? `(${waiting}) Inbox · PagerMCP` : "Inbox · PagerMCP";
  if (document.title === title) return;
  document.title = title;
  const icon = document.querySelector("link[rel='icon']");
  icon.dataset.plain ??= icon.getAttribute("href");
  const number = waiting > 99 ? "99+" : String(waiting);
  const svg = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><rect width="24" height="24" rx="5" fill="#c62828"/><text x="12" y="18" font-family="sans-serif" font-weight="bold" font-size="${[17, 17, 15, 11][number.length]}" text-anchor="middle" fill="#fff">${number}</text></svg>`;
  icon.href = waiting ? `data:image/svg+xml,${encodeURIComponent(svg)}` : icon.dataset.plain;
}

function fine() {
  element("trouble").hidden = true;
  linked("live", "good");
}

function trouble(text) {
  const said = `${text} Trying again.`;
  if (element("trouble").textContent !== said) element("trouble").textContent = said; // or it is read out again
  element("trouble").hidden = false;
  element("waiters").textContent = "";
  linked("not live", "bad");
}

function linked(word, kind) {
  const link = element("link");
  link.textContent = word;
  link.className = `state ${kind}`;
  link.hidden = false;
}

function sentence(error) {
  const text = error.message;
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

/** Ask for the key (again). why: what is wrong with the one that was given. */
function close(why = "") {
  turn++;
  polling++;
  controller.abort();
  key = "";
  keep(KEY, "");
  keep(NUMBER, "");
  clear();
  known = counts = null;
  count(0);
  for (const id of ["number", "curl", "said"]) element(id).textContent = "";
  for (const id of ["box", "link", "trouble"]) element(id).hidden = true;
  element("key").hidden = false;
  element("key-error").textContent = why;
  element("key-text").focus();
}

function refuse(error) {
  const isNumber = error.status === 403;
  close(isNumber ? "This is a number: it only sends. The key is the mailbox's other address." : "This is no key. A key looks like 0f9d2c1e-5b7a-4c3d-9e6f-1a2b3c4d5e6f.");
}

function clear() {
  pages = new Map();
  seenAt = new Map();
  cards = new Map();
  more = false;
  shown = STEP;
  list.replaceChildren();
}

// ---- what a person does

element("key").addEventListener("submit", (event) => {
  event.preventDefault();
  key = element("key-text").value.trim();
  element("key-error").textContent = "";
  if (/[^\x21-\x7e]/.test(key)) return refuse({ status: 401 }); // what can't be in a header
  turn++;
  follow();
});

element("views").addEventListener("click", (event) => {
  const chosen = event.target.closest("button")?.dataset.view;
  if (!chosen) return;
  view = chosen;
  turn++;
  known = null;
  for (const button of element("views").children) button.setAttribute("aria-pressed", String(button.dataset.view === view));
  clear();
  attempt(refresh);
});

let typing;
element("filter").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => {
    shown = STEP;
    if (counts) draw();
  }, 100);
});

element("more").addEventListener("click", showMore);

element("test").addEventListener("click", () =>
  attempt(async () => {
    say("");
    const page = { JOB_ID: "test", status: "success", message: "A test page from the inbox" };
    const { waiters } = await relay("notify", { json: page });
    say(waiters ? "Sent. Somebody waited for it." : "Sent. Nobody waits for pages now, so it stays here.");
    await refresh();
  }),
);

element("forget").addEventListener("click", () => {
  close();
  announce("The key is forgotten");
});

const ACTS = {
  ack: ({ handle }) => relay("ack", { json: { ids: [handle], waiting: true } }),
  replay: ({ id }) => relay("replay", { json: { ids: [id] } }),
};

list.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-act]");
  if (!button || button.ariaDisabled) return;
  const page = pages.get(button.closest("li").dataset.id);
  button.ariaDisabled = "true"; // and not disabled, by which it would lose the focus
  attempt(async () => {
    try {
      say("");
      await ACTS[button.dataset.act](page);
      say(button.dataset.act === "ack" ? "Acknowledged." : "A copy of it waits now.");
    } finally {
      button.ariaDisabled = null;
      await refresh(); // whatever the answer was, what is shown may be no longer so
      if (pages.get(page.id) === page) await refreshOne(page); // it is not among the latest ones
    }
  });
});

/** Do something, and say what went wrong. */
async function attempt(act) {
  const mine = turn;
  try {
    await act();
  } catch (error) {
    if (mine !== turn) return;
    if (error.status === 401 || error.status === 403) refuse(error);
    else say(sentence(error));
  }
}

function say(text) {
  element("said").textContent = text;
}

setInterval(() => {
  if (document.hidden) return;
  refreshTimes(list);
  markStale();
}, 5000);

addCopyButtons();
if (key) follow();
else element("key").hidden = false;
