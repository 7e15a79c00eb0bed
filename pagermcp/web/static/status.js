// The operator's page: asks for the token, keeps it in this tab, and shows what status.json says, every few seconds.

import { ago, ask, keep, kept, part, time } from "./common.js";

const TOKEN = "pagermcp operator token"; // in sessionStorage
const EVERY_MS = 5000;
const LONGEST_MS = 60000; // between two questions to a relay that does not answer
const HEIGHT = 100; // of the plot, in its own units; a minute is ten wide
const element = (id) => document.getElementById(id);

let token = kept(TOKEN);
let timer = 0;
let pause = EVERY_MS;
let turn = 0; // rises with each question, so that the answer to an earlier one is dropped

const number = (value) => value.toLocaleString("en");
const words = (name) => name.replaceAll("_", " ");

function duration(seconds, most = "") {
  if (seconds === null) return "–";
  return most + (seconds < 1 ? `${+(seconds * 1000).toPrecision(3)} ms` : `${+seconds.toPrecision(3)} s`);
}

function bytes(value) {
  return value >= 1e9 ? `${number(+(value / 1e9).toFixed(1))} GB` : `${number(Math.round(value / 1e6))} MB`;
}

/** A word with its sign and colour. */
function state(word, good) {
  return part("span", `state ${good ? "good" : "warn"}`, word);
}

/** Rows of a table: a name, and what stands beside it, which are texts or elements; a table that stacks labels them. */
function fill(id, rows) {
  const labels = [...(element(id).closest("table.stacks")?.tHead.rows[0].cells ?? [])].slice(1);
  element(id).replaceChildren(
    ...rows.map(([name, ...values]) => {
      const row = part("tr");
      const head = part("th", "", name);
      head.scope = "row";
      row.append(head);
      for (const [place, value] of values.entries()) {
        const cell = part("td", "number");
        if (labels.length) cell.dataset.label = labels[place].textContent;
        cell.append(value);
        row.append(cell);
      }
      return row;
    }),
  );
}

function plot(minutes) {
  const most = Math.max(...minutes);
  const bars = minutes.map((pages, place) => {
    const bar = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const height = pages && Math.max(2, (pages / most) * HEIGHT);
    const at = { x: place * 10 + 1, y: HEIGHT - height, width: 8, height };
    for (const [name, value] of Object.entries(at)) bar.setAttribute(name, value);
    return bar;
  });
  element("plot").replaceChildren(...bars);
  const total = minutes.reduce((sum, pages) => sum + pages, 0);
  const peak = most ? `, at most ${number(most)} in one minute` : "";
  element("rate-said").textContent = `${number(total)} in the last hour${peak}; ${number(minutes.at(-1))} in the minute that goes on.`;
  fill("minutes", minutes.map((pages, place) => [String(minutes.length - 1 - place), number(pages)]).reverse());
}

function show(status) {
  const { counted, disk } = status;
  const oldest = counted.oldest_waiting;
  const at = counted.as_of ? ["Counted ", time(counted.as_of), counted.whole ? "" : ", not to the end: there may be more"] : ["Still counting"];
  const since = part("span", "", "Measured since ");
  since.append(time(status.since), ". ", ...at, ".");
  element("as-of").replaceChildren(since);
  fill("levels", [
    ["Waiters", number(status.waiters)],
    ["Mailboxes", number(counted.mailboxes)],
    ["Rooms", number(counted.rooms)],
    ...Object.entries(counted.pages).map(([name, pages]) => [`Pages ${name}`, number(pages)]),
    ["Oldest waiting page", oldest ? `${ago(oldest.age_seconds)}, in ${oldest.mailbox}…` : "none waits"],
  ]);
  const watching = status.watching.find((one) => one === "degraded") ?? status.watching[0];
  fill("relay", [
    ["Version", `${status.version}, ${status.build}`],
    ["Workers", number(status.workers)],
    ["Watching files", state(watching, watching === "ok")],
    ["Watchers restarted", number(status.watcher_restarts)],
    ["Retention", state(status.retention, ["ok", "another process does it"].includes(status.retention))],
    ["Disk free", `${bytes(disk.free_bytes)} of ${bytes(disk.size_bytes)}`],
    ["Posts are refused below", bytes(disk.kept_free_bytes)],
    ...(disk.free_inodes === null ? [] : [["Inodes free", number(disk.free_inodes)]]),
  ]);
  plot(status.pages_per_minute);
  const names = { fsync: "Making durable (fsync)", wake: "From a page to its reader", janitor: "Janitor's pass" };
  fill("durations", Object.entries(status.seconds).map(([name, { count, mean, p50, p99 }]) =>
    [names[name], number(count), duration(mean), ...[p50, p99].map((most) => (count && most === null ? "> 1 min" : duration(most, "≤ ")))]));
  fill("counts", [
    ...Object.entries(status.pages).map(([name, pages]) => [`Pages ${words(name)}`, number(pages)]),
    ["Leases that ran out", number(status.leases_run_out)],
    ...Object.entries(status.refusals).filter(([, times]) => times).map(([code, times]) => [`Refused: ${words(code)}`, number(times)]),
  ]);
}

async function look() {
  clearTimeout(timer);
  if (document.hidden) return; // until it is shown
  const mine = ++turn;
  let trouble = "";
  let known = Boolean(token);
  if (token) {
    try {
      const status = await ask("status.json", { key: token });
      if (mine !== turn) return;
      show(status);
      pause = EVERY_MS;
    } catch (error) {
      if (mine !== turn) return;
      pause = Math.min(2 * pause, LONGEST_MS);
      trouble = error.message;
      if (error.status === 401) {
        known = false;
        token = "";
        keep(TOKEN, "");
      }
    }
    timer = setTimeout(look, pause);
  }
  if (element("trouble").textContent !== trouble) element("trouble").textContent = trouble;
  element("ask").hidden = known;
  element("figures").hidden = !known || !element("levels").firstChild;
}

element("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  token = element("token").value.trim();
  element("token").value = "";
  keep(TOKEN, token);
  look();
});

element("forget").addEventListener("click", () => {
  token = "";
  keep(TOKEN, "");
  for (const id of ["levels", "relay", "minutes", "durations", "counts", "plot"]) element(id).replaceChildren();
  look();
  element("token").focus();
});

document.addEventListener("visibilitychange", look);

look();
