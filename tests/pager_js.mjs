// plugins/pager.js with stand-ins for the relay, for OpenCode and for time, for what is rare or slow in reality.
// node tests/pager_js.mjs SCENARIO; test_opencode.py runs each.

import assert from "node:assert/strict"
import { rmSync, writeFileSync } from "node:fs"
import { readFile } from "node:fs/promises"
import { join } from "node:path"
import * as module from "../plugins/pager.js"

const plugin = module.default
const directory = process.env.SCENARIO_FOLDER
const file = join(directory, ".pager_session")
const KEY = "0f9d2c1e-5b7a-4c3d-9e6f-1a2b3c4d5e6f"
const NUMBER = "0f9d2c1e-9ae8-812c-839c-75714745f412"
const ID = "1795981500901952"

const turn = () => new Promise((resolve) => setImmediate(resolve))
async function until(condition) {
  for (const began = Date.now(); !condition(); await turn())
    assert(Date.now() - began < 20_000, `what was waited for did not happen: ${condition}`)
}
// Long enough for whatever would happen now without time passing; the plugin reads a file now and then, so we do too.
async function settle() {
  for (let reads = 0; reads < 10; reads++) {
    await readFile(new URL(import.meta.url))
    for (let turns = 0; turns < 10; turns++) await turn()
  }
}

// Time passes only as it is told to.
let now = 0
const timers = new Map()
globalThis.setTimeout = (call, milliseconds) => {
  const timer = { unref: () => timer }
  timers.set(timer, { call, due: now + milliseconds, milliseconds })
  return timer
}
globalThis.setInterval = (call, milliseconds) => {
  const timer = { unref: () => timer }
  timers.set(timer, { call, due: now + milliseconds, every: milliseconds })
  return timer
}
globalThis.clearTimeout = globalThis.clearInterval = (timer) => timers.delete(timer)
async function pass(seconds) {
  for (const end = now + seconds * 1000; ; ) {
    await settle()
    const [next] = [...timers].filter(([, { due }]) => due <= end).sort((a, b) => a[1].due - b[1].due)
    if (!next) return void (now = end)
    const [timer, about] = next
    now = about.due
    if (about.every) about.due += about.every
    else timers.delete(timer)
    about.call()
  }
}
const held = () => [...timers.values()].some((one) => one.every) // a lease is being kept
const pauses = () => [...timers.values()].filter((one) => !one.every).map((one) => one.milliseconds / 1000)

// The relay: each call is written down; a wait stays open until it is answered.
const calls = []
const waits = []
let broken = 0
let refuse = () => undefined // a call → an answer that is no success
globalThis.fetch = async (url, { method, headers, body, signal }) => {
  assert(!url.includes(KEY), "the key is in a URL")
  const path = url.replace("http://relay.test", "")
  const call = { method, path, key: headers.Authorization, body: body && JSON.parse(body) }
  calls.push(call)
  const refusal = refuse(call)
  if (refusal) return refusal
  if (!call.path.startsWith("/wait")) return Response.json({})
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason)
    signal.addEventListener("abort", () => {
      broken += 1
      reject(signal.reason)
    })
    waits.push((...pages) => resolve(Response.json({ pages })))
  })
}
const said = (path) => calls.filter((call) => call.path === path).map((call) => call.body)
const refusal = (status, message, headers = {}) => Response.json({ error: { code: "x", message } }, { status, headers })
const page = (more = {}) => ({
  ...{ id: ID, handle: ID, age_seconds: 4, stale: false, attempt: 1, payload: { message: "hello" } },
  ...more,
})

// OpenCode 1.18: sessions with messages; what is prompted is there at once, unless a scenario changes that.
function opencode() {
  const told = { sessions: [], messages: new Map(), log: [], prompts: [] }
  told.session = (id, more = {}) => told.sessions.push({ id, directory, time: { updated: Date.now() }, ...more })
  const found = (id) => told.sessions.find((one) => one.id === id)
  told.client = {
    app: { log: async ({ body }) => void told.log.push(body) },
    session: {
      list: async () => ({ data: told.sessions }),
      get: async ({ path: { id } }) => (found(id) ? { data: found(id) } : { error: { name: "NotFoundError" } }),
      messages: async ({ path: { id } }) => ({ data: [...(told.messages.get(id)?.values() ?? [])] }),
      message: async ({ path: { id, messageID } }) => ({ data: told.messages.get(id)?.get(messageID) }),
      promptAsync: async ({ path: { id }, body }) => {
        told.prompts.push({ id, ...body })
        if (!told.messages.has(id)) told.messages.set(id, new Map())
        told.messages.get(id).set(body.messageID, { info: { id: body.messageID }, parts: body.parts })
        await told.happens("message.part.updated", { part: { messageID: body.messageID } })
        return {}
      },
    },
  }
  told.start = async () => (told.hooks = await plugin.server({ client: told.client, directory }))
  told.happens = (type, properties) => told.hooks.event({ event: { type, properties } })
  told.complaints = () => told.log.filter((line) => line.level !== "info").map((line) => line.message)
  return told
}

async function started(...sessions) {
  writeFileSync(file, `${KEY}\n`)
  const told = opencode()
  for (const id of sessions) told.session(id)
  await told.start()
  return told
}

const scenarios = {
  exports() {
    assert.deepEqual(Object.keys(module), ["default"])
    assert.equal(plugin.id, "pagermcp")
    assert.equal(typeof plugin.server, "function")
    assert.equal(typeof plugin.setup, "function")
  },

  async setup_in_1_18() {
    writeFileSync(file, KEY)
    assert.equal(await plugin.setup({ options: {}, agent: {}, command: {}, plugin: {}, skill: {} }), undefined)
    await settle()
    assert.deepEqual(calls, [])
  },

  async acknowledged_after() {
    const told = await started("ses_1")
    let arrive
    told.client.session.message = () => new Promise((resolve) => (arrive = resolve))
    await until(() => waits.length)
    const path = "/wait?timeout=50&max=100&lease=60"
    assert.deepEqual(calls[0], { method: "GET", path, key: `Bearer ${KEY}`, body: undefined })
    waits[0](page())
    await until(() => arrive)
    await settle()
    assert.deepEqual(said("/ack"), [])
    arrive({ data: { parts: told.prompts[0].parts } })
    await until(() => said("/ack").length)
    assert.deepEqual(said("/ack"), [{ ids: [ID] }])
    assert.deepEqual(told.prompts[0].parts[0].metadata, { pagermcp: [ID] })
    await until(() => waits.length === 2)
  },

  async of_this_project() {
    const told = await started("ses_1")
    const later = { time: { updated: Date.now() + 60_000 } }
    told.session("ses_archived", { time: { ...later.time, archived: 1 } })
    told.session("ses_child", { ...later, parentID: "ses_1" })
    told.session("ses_of_another_folder", { ...later, directory: "/elsewhere" })
    await until(() => waits.length)
    waits[0](page())
    await until(() => said("/ack").length)
    assert.deepEqual(told.prompts.map((one) => one.id), ["ses_1"])
  },

  async used_here() {
    const told = await started("ses_1")
    told.session("ses_of_another_process", { time: { updated: Date.now() + 60_000 } })
    await told.hooks["chat.message"]({ sessionID: "ses_1" })
    await until(() => waits.length)
    waits[0](page())
    await until(() => said("/ack").length)
    assert.deepEqual(told.prompts.map((one) => one.id), ["ses_1"])
  },

  async refused_by_opencode() {
    const told = await started("ses_1")
    told.client.session.promptAsync = async ({ body }) => {
      told.prompts.push(body)
      return { error: { name: "BadRequest", data: { message: "not today" } } }
    }
    await until(() => waits.length)
    waits[0](page())
    await until(() => told.prompts.length === 1)
    await pass(60)
    await until(() => waits.length === 2)
    assert.equal(told.prompts.length, 5)
    assert.equal(new Set(told.prompts.map((one) => one.messageID)).size, 1) // tried again it would be the same message
    assert.deepEqual(said("/ack"), [])
    assert.deepEqual(said("/release"), [{ ids: [ID], delay: 300 }])
    assert.match(told.complaints()[0], /not today/)
  },

  async lost_by_opencode() {
    const told = await started("ses_1")
    told.client.session.promptAsync = async ({ body }) => {
      told.prompts.push(body)
      return {} // 204
    }
    await until(() => waits.length)
    waits[0](page())
    await until(() => told.prompts.length)
    await pass(9)
    assert.equal(told.complaints().length, 0)
    await pass(110)
    assert.deepEqual(said("/ack"), [])
    assert.equal(said("/release").length, 1)
  },

  async comes_again() {
    const told = await started("ses_1", "ses_2")
    await until(() => waits.length)
    told.messages.set("ses_1", new Map([["msg_1", { parts: [{ type: "text", metadata: { pagermcp: [ID] } }] }]]))
    const other = "1795981500901968"
    waits[0](page({ handle: `${ID}.2`, attempt: 2 }), page({ id: other, handle: `${other}.2`, attempt: 2 }))
    await until(() => waits.length === 2)
    assert.deepEqual(said("/ack"), [{ ids: [`${ID}.2`] }, { ids: [`${other}.2`] }])
    assert.equal(told.prompts.length, 1)
  },

  async no_session_file() {
    const told = opencode()
    told.session("ses_1")
    await told.start()
    await settle()
    await pass(3600)
    assert.deepEqual(calls, [])
    writeFileSync(file, KEY.toUpperCase().replaceAll("-", ""))
    await pass(3600)
    assert.deepEqual(calls, []) // nobody looks by the clock
    await told.hooks["chat.message"]({ sessionID: "ses_1" })
    await until(() => calls.length)
    assert.equal(calls[0].key, `Bearer ${KEY}`)
    assert.deepEqual(told.complaints(), [])
  },

  async number_in_file() {
    writeFileSync(file, NUMBER)
    const told = opencode()
    await told.start()
    await until(() => told.complaints().length)
    for (let n = 0; n < 3; n++) {
      await told.happens("session.idle", { sessionID: "ses_1" })
      await settle()
    }
    assert.deepEqual(calls, [])
    assert.deepEqual(told.complaints(), [`pager: ${file} holds a number, which can't read`])
  },

  async unauthorized() {
    refuse = () => refusal(403, "no")
    const told = await started("ses_1")
    await until(() => told.complaints().length)
    await told.happens("session.idle", { sessionID: "ses_1" })
    await pass(3600)
    assert.equal(calls.length, 1)
    assert.equal(told.complaints().length, 1)
    refuse = () => undefined
    writeFileSync(file, "11111111-1111-4111-8111-111111111111")
    await told.happens("session.idle", { sessionID: "ses_1" })
    await until(() => waits.length)
    assert.equal(calls[1].key, "Bearer 11111111-1111-4111-8111-111111111111")
  },

  async backoff() {
    refuse = () => { throw new TypeError(`fetch failed: http://relay.test`) }
    const told = await started("ses_1")
    const seen = []
    for (let n = 1; n <= 10; n++) {
      await until(() => calls.length === n && pauses().length)
      seen.push(pauses()[0])
      if (n === 10) refuse = () => undefined
      await pass(pauses()[0])
    }
    await until(() => waits.length)
    waits[0]()
    await until(() => told.log.length === 3 && waits.length === 2)
    assert.deepEqual(calls.slice(-2).map((call) => call.path.split("&")[0]), ["/wait?timeout=0", "/wait?timeout=50"])
    seen.forEach((pause, n) => assert(pause <= Math.min(60, 2 ** n) && pause >= Math.min(60, 2 ** n) / 2, seen.join()))
    assert.deepEqual(told.log.map((line) => line.message), [
      `Pager Plugin loaded for ${directory}`,
      "pager: no answer from the relay, trying again: fetch failed: PAGER_URL",
      "pager: the relay answers again",
    ])
    assert(told.log.every((line) => line.service === "pager"))
  },

  async retry_after() {
    refuse = () => refusal(503, "too many", { "Retry-After": "30" })
    await started("ses_1")
    await until(() => pauses().length)
    await pass(29)
    assert.equal(calls.length, 1)
    await pass(2)
    await until(() => calls.length === 2)
  },

  async extends() {
    const told = await started()
    await until(() => waits.length)
    waits[0](page())
    await until(held)
    await pass(65)
    assert.deepEqual(said("/extend"), Array(3).fill({ ids: [ID], lease: 60 }))
    assert.deepEqual(said("/ack"), [])
    told.session("ses_1")
    await told.happens("session.created", { info: told.sessions[0] })
    await until(() => said("/ack").length)
    await pass(65)
    assert.equal(said("/extend").length, 3)
  },

  async lease_lost() {
    const told = await started()
    await until(() => waits.length)
    waits[0](page())
    await until(held)
    refuse = ({ path }) => path === "/extend" &&
      Response.json({ error: { code: "not_leased", message: "no" }, refused: [{ id: ID }] }, { status: 409 })
    await pass(21)
    told.session("ses_1")
    await told.happens("session.created", { info: told.sessions[0] })
    await until(() => waits.length === 2)
    assert.deepEqual(told.prompts, [])
    assert.deepEqual(said("/release"), [])
  },

  async loaded_twice() {
    const told = await started("ses_1")
    const older = told.hooks
    await until(() => waits.length)
    await told.start()
    await until(() => waits.length === 2)
    await settle()
    const system = []
    for (const hooks of [older, told.hooks])
      await hooks["experimental.chat.system.transform"]({ sessionID: "ses_1" }, { system })
    assert.deepEqual(system, [plugin.guidance])
    waits[1](page())
    await until(() => waits.length === 3)
    await settle()
    assert.deepEqual([waits.length, broken], [3, 1]) // the first one's was broken off, and it has begun no other
    assert.equal(told.prompts.length, 1)
  },

  async dispose() {
    const told = await started()
    await until(() => waits.length)
    waits[0](page())
    await until(held)
    await told.hooks.dispose()
    assert.deepEqual(said("/release"), [{ ids: [ID], delay: 0 }])
    assert.equal(calls.filter((call) => call.path.startsWith("/wait")).length, 1)
    assert.equal(timers.size, 0)
  },

  async two() {
    const told = await started2()
    await told.happens("session.created", { sessionID: "ses_1", location: { directory } })
    await told.happens("session.created", { sessionID: "ses_2", parentID: "ses_1", location: { directory } })
    await told.happens("session.created", { sessionID: "ses_3", location: { directory: "/elsewhere" } })
    waits[0](page())
    await until(() => said("/ack").length)
    assert.equal(told.prompts.length, 1)
    const [{ sessionID, text, metadata, delivery }] = told.prompts
    assert.deepEqual([sessionID, metadata, delivery], ["ses_1", { pagermcp: [ID] }, "queue"])
    assert.match(text, /^Pagerbericht ontvangen: page 1795981500901952, 4 s old\n/)
    await told.cleanup()
    assert(told.signal.aborted)
  },

  async two_again() {
    const told = await started2()
    await told.happens("session.created", { sessionID: "ses_1", location: { directory } })
    told.context = [{ type: "user", text: "…", metadata: { pagermcp: [ID] } }]
    waits[0](page({ handle: `${ID}.2`, attempt: 2 }))
    await until(() => said("/ack").length)
    assert.deepEqual(told.prompts, [])
    await told.cleanup()
  },

  async two_guidance() {
    const told = await started2()
    for (const sessionID of ["ses_1", "ses_2"]) {
      const system = [{ type: "text", text: "You are." }]
      await told.hooks.context({ sessionID, system })
      assert.equal(system.length, sessionID === "ses_1" ? 2 : 1)
    }
    await told.cleanup()
  },
}

// OpenCode 2.x, as its source has it: @opencode-ai/plugin, src/promise.
async function started2() {
  writeFileSync(file, KEY)
  const told = { prompts: [], hooks: {}, context: [] }
  const events = []
  let wake
  told.happens = async (type, data) => {
    events.push({ type, data })
    wake?.()
    await settle()
  }
  told.cleanup = await plugin.setup({
    location: { directory },
    event: {
      async *subscribe({ signal }) {
        told.signal = signal
        while (!signal.aborted) {
          while (events.length) yield events.shift()
          await new Promise((resolve) => {
            wake = resolve
            signal.addEventListener("abort", resolve)
          })
        }
      },
    },
    session: {
      get: async ({ sessionID }) => ({ id: sessionID, ...(sessionID === "ses_2" && { parentID: "ses_1" }) }),
      prompt: async (message) => void told.prompts.push(message),
      context: async () => told.context,
      hook: async (name, call) => void (told.hooks[name] = call),
    },
  })
  await until(() => waits.length && told.signal)
  return told
}

rmSync(file, { force: true })
await scenarios[process.argv[2]]()
console.log(`${process.argv[2]} is as it should be`)
process.exit(0)
