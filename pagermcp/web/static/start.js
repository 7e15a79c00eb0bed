// The start page: get a mailbox, fill the examples with it, and say how the relay is.

import { KEY, NUMBER, announce, ask, keep, kept, part } from "./common.js";

const element = (id) => document.getElementById(id);
const LOOK_SECONDS = 15;

const blanks = [...document.querySelectorAll("[data-fill=number]")];
const placeholder = blanks[0].textContent;

/** Show this mailbox and fill the examples with its number; without one, empty them again. */
function show(key, number) {
  element("key").textContent = key;
  element("number").textContent = number;
  element("none").hidden = Boolean(key);
  element("mailbox").hidden = !key;
  element("blanks").hidden = Boolean(number);
  for (const blank of blanks) {
    blank.textContent = number || placeholder; // never the key: each of them only sends
    blank.className = number ? "filled" : "blank";
  }
}

function showKept() {
  show(kept(NUMBER) && kept(KEY), kept(KEY) && kept(NUMBER));
}

element("mint").addEventListener("click", async () => {
  element("mint").disabled = true;
  element("trouble").textContent = "";
  try {
    const { uuid, number } = await ask("mailboxes", { method: "POST" });
    element("unkept").hidden = keep(KEY, uuid) && keep(NUMBER, number);
    show(uuid, number);
    element("get").focus();
    announce("Here is your mailbox. The examples have its number now.");
  } catch (error) {
    element("trouble").textContent = error.message;
  } finally {
    element("mint").disabled = false;
  }
});

element("forget").addEventListener("click", () => {
  if (!confirm("Have you saved the key? Without it nobody can read this mailbox.")) return;
  keep(KEY, "");
  keep(NUMBER, "");
  show("", "");
  element("mint").focus();
});

// ---- how the relay is

let said = "";

async function look() {
  let state = "good";
  let text = "The relay is well";
  const more = [];
  try {
    const health = await ask("healthz");
    const { version, build } = await ask("version");
    more.push(`Version ${version}, build ${build}`);
    if (health.watching === "degraded") {
      state = "warn";
      text = "The relay is well, but slow to notice files that others bring";
    }
    if (health.retention !== "ok") more.push(`Retention: ${health.retention}`);
  } catch (error) {
    state = "bad";
    text = error.status ? error.message : "The relay does not answer";
  }
  if (said !== text + more) {
    element("health").replaceChildren(part("span", `state ${state}`, text), ...more.map((one) => part("span", "", one)));
    if (said) announce(text);
    said = text + more;
  }
  setTimeout(look, LOOK_SECONDS * 1000);
}

/** Put the URL by which this page was reached into the examples, in place of the one that the relay was called by. */
function correctUrl() {
  const { url } = element("examples").dataset;
  const here = new URL(".", location).href.replace(/\/$/, "");
  if (!url || url === here) return;
  const texts = document.createTreeWalker(element("examples"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(url, () => here);
}

correctUrl();
element("mint").hidden = false;
showKept();
addEventListener("pageshow", showKept); // back from the inbox, where it may have been forgotten
look();
