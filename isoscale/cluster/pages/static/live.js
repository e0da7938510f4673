// One stream of events per page. It goes on after the last event that came (Last-Event-ID), so a break loses nothing;
// a page that nobody looks at closes it and asks now and then. Read by fetch: so every event comes, whatever its name.
import { get } from "./api.js";
import { h, setText } from "./dom.js";
import { setClock } from "./format.js";
import { notice } from "./notice.js";

// The service says something at least every 15 s.
const SILENT_MS = 40_000;
const HIDDEN_MS = 15_000;
const WORDS = { connecting: "connecting", live: "live", polling: "every 15 s", gone: "offline" };

const listeners = new Set();
let last = 0;
let term = 0;
let stream = null;
let failures = 0;
let timer = 0;
let lostAt = null;
let crowded = false;

export const connection = { state: "connecting" };

export function onEvent(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function start(info) {
  last = info.event;
  term = info.term;
  document.addEventListener("visibilitychange", turn);
  addEventListener("online", retry);
  turn();
}

function turn() {
  clearTimeout(timer);
  if (document.hidden) {
    stream?.abort();
    stream = null;
    become("polling");
    timer = setInterval(() => tell({ event: "poll" }), HIDDEN_MS);
  } else {
    clearInterval(timer);
    connect();
  }
}

function retry() {
  clearTimeout(timer);
  if (!document.hidden) connect();
}

async function connect() {
  stream?.abort();
  const own = (stream = new AbortController());
  try {
    const headers = { accept: "text/event-stream", "last-event-id": String(last) };
    const response = await fetch("/events", { headers, signal: own.signal, cache: "no-store" });
    if (response.status === 401) return await get("/api");
    if (response.status === 429) return full((await response.json()).error.text);
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    await back();
    await read(response.body.getReader(), own);
  } catch {
    // Whatever it was: it is gone.
  }
  if (own === stream && !document.hidden) lost();
}

async function read(reader, own) {
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const silent = setTimeout(() => own.abort(), SILENT_MS);
    const { done, value } = await reader.read().finally(() => clearTimeout(silent));
    if (done) return;
    text += decoder.decode(value, { stream: true });
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) take(block);
  }
}

function take(block) {
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("id: ")) last = Number(line.slice(4));
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  if (data.length) tell(JSON.parse(data.join("\n")));
}

function tell(event) {
  for (const listener of listeners) listener(event);
}

async function back() {
  become("live");
  failures = 0;
  if (crowded) notice("Live again.", { tone: "good", forMs: 6000 });
  crowded = false;
  if (lostAt === null) return;
  const info = (await get("/session")).info;
  if (!info) return await get("/api");
  setClock(info.now_s);
  const restarted = info.term !== term;
  [term, lostAt] = [info.term, null];
  notice(restarted ? "The service was restarted and is back. Jobs went on meanwhile." : "Connected again. Nothing was missed.", {
    tone: "good",
    forMs: 6000,
  });
  tell({ event: "back" });
}

// It answers, and has as many readers of events as it takes: this page asks now and then instead, until there is room.
function full(text) {
  become("polling");
  crowded = true;
  notice(`No live updates: ${text}. This page tries again every ${HIDDEN_MS / 1000} s.`, { action: tryNow() });
  tell({ event: "poll" });
  timer = setTimeout(retry, HIDDEN_MS);
}

function lost() {
  failures += 1;
  lostAt ??= new Date();
  become("gone");
  const waits = Math.min(10, 2 ** Math.min(failures - 1, 4) / 2);
  const since = lostAt.toLocaleTimeString(undefined, { hour12: false });
  notice(`The service does not answer since ${since}. Jobs go on without it; this page shows what it knew then.`, { action: tryNow() });
  timer = setTimeout(retry, waits * 1000);
}

const tryNow = () => h("button", { type: "button", class: "small", onclick: retry }, "Try now");

function become(state) {
  connection.state = state;
  const shown = document.getElementById("connection");
  if (!shown) return;
  shown.dataset.state = state;
  setText(shown.lastElementChild, WORDS[state]);
}

// Calls `work` at once, every `everyMs` while the page is seen, and soon after each event that `concerns` it. Never two
// at a time. A failure of the service to answer is told by the line on top, others by `failed`.
export function keepFresh(work, { everyMs = 2000, concerns = () => true, failed = () => {} } = {}) {
  let busy = false;
  let again = false;
  let soon = 0;
  async function run() {
    if (busy) return void (again = true);
    busy = true;
    try {
      await work();
      document.body.dataset.ready = "yes";
    } catch (error) {
      if (!error.isGone && error.name !== "AbortError") failed(error);
      document.body.dataset.ready = "yes";
    }
    busy = false;
    if (again) {
      again = false;
      setTimeout(run, 100);
    }
  }
  onEvent((event) => {
    if (event.event !== "poll" && event.event !== "back" && !concerns(event)) return;
    // A burst of events is one look.
    soon ||= setTimeout(() => ((soon = 0), run()), 120);
  });
  if (everyMs) setInterval(() => !document.hidden && connection.state !== "gone" && run(), everyMs);
  run();
  return run;
}
