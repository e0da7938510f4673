// Logs of a job: any number of lines, of which only those in view are elements; follow, search, older lines by scrolling.
import { addressState } from "./address.js";
import { at, get } from "./api.js";
import { h, put, setText } from "./dom.js";
import { bytes, count, percent } from "./format.js";
import { LogLines } from "./log-lines.js";
import { attempt, copy } from "./notice.js";
import { visible } from "./visible.js";

const LINE = 18;
const MARGIN = 20;
const LONGEST = 4000;

export function logs(base) {
  const address = addressState({ source: "" });
  let log = null;
  let following = true;
  let found = [];
  let needle = "";
  let busy = false;
  const sources = h("select", { "aria-label": "Which log", onchange: () => (address.set({ source: sources.value }), attempt(() => open(sources.value))) });
  const search = h("input", { type: "search", "data-search": true, "data-log-search": true, placeholder: "Search this log  ( / )", "aria-label": "Search this log" });
  const follow = h("button", { type: "button", class: "chip", "aria-pressed": "true", "data-follow": true, onclick: () => setFollow(!following) }, "Follow");
  const said = h("span", { class: "small quiet" });
  const rows = h("div", { class: "log-rows" });
  const space = h("div", { class: "log-space" }, rows);
  const view = h("div", { class: "log", tabindex: "0", role: "region", "aria-label": "Log", "data-log": true, onscroll: scrolled }, space);
  const matches = h("div", { class: "matches", "data-log-matches": true, hidden: true });
  const form = h("form", { role: "search", onsubmit: (event) => (event.preventDefault(), look(-1)) }, search);
  const all = h("button", { type: "button", class: "small", onclick: () => copy(log?.lines.join("\n") ?? "", "Loaded lines") }, "Copy loaded lines");
  const element = h("section", { class: "panel" }, h("header", null, sources, follow, said, h("div", { class: "actions" }, form, all)), matches, view);

  async function refresh() {
    const files = await get(`${base}/logs`);
    const wanted = files.map((one) => one.source).join();
    if (sources.dataset.shown !== wanted) {
      put(sources, files.map((one) => h("option", { value: one.source }, one.source === "coordinator" ? "coordinator" : `executor ${one.source}`)));
      sources.dataset.shown = wanted;
      const first = files.find((one) => one.source === address.get("source")) ?? files.find((one) => one.source !== "coordinator" && one.size) ?? files.find((one) => one.size) ?? files[0];
      sources.value = log?.source ?? first?.source ?? "";
    }
    if (!log && sources.value) return await open(sources.value);
    if (log && (await log.grow({ trim: following }))) draw();
    tell();
  }

  async function open(source) {
    log = new LogLines(base, source);
    following = true;
    await log.tail();
    closeMatches();
    draw();
    tell();
  }

  function tell() {
    const torn = log.begin ? `, from byte ${count(log.begin)} on` : "";
    setText(said, log.size ? `${count(log.lines.length)} lines loaded${torn} · ${bytes(log.size)}` : "empty: it printed nothing so far");
    follow.setAttribute("aria-pressed", String(following));
  }

  function setFollow(value) {
    following = value;
    if (following) attempt(() => log.tail()).then(draw);
    tell();
  }

  function draw() {
    space.style.height = `${log.lines.length * LINE + 8}px`;
    if (following) view.scrollTop = view.scrollHeight;
    paint();
  }

  function paint() {
    const first = Math.max(0, Math.floor(view.scrollTop / LINE) - MARGIN);
    const last = Math.min(log.lines.length, first + Math.ceil(view.clientHeight / LINE) + 2 * MARGIN);
    rows.style.transform = `translateY(${first * LINE}px)`;
    put(rows, log.lines.slice(first, last).map(lineOf));
  }

  function lineOf(text) {
    const shown = visible(text.length > LONGEST ? `${text.slice(0, LONGEST)} … ${count(text.length - LONGEST)} more characters` : text);
    const line = h("div", { class: "line" });
    if (!needle) return put(line, shown);
    const low = shown.toLowerCase();
    for (let from = 0; ; ) {
      const next = low.indexOf(needle, from);
      if (next < 0) return line.append(shown.slice(from)), line;
      line.append(shown.slice(from, next), h("mark", null, shown.slice(next, next + needle.length)));
      from = next + needle.length;
    }
  }

  async function scrolled() {
    if (!log) return;
    const atEnd = view.scrollTop + view.clientHeight >= view.scrollHeight - 2 * LINE;
    if (following !== atEnd && log.end >= log.size) {
      following = atEnd;
      tell();
    }
    paint();
    if (view.scrollTop < 40 * LINE && log.begin && !busy) {
      busy = true;
      const came = await attempt(() => log.older().then((number) => ({ number })));
      busy = false;
      if (!came) return;
      const place = view.scrollTop + came.number * LINE;
      draw();
      view.scrollTop = place;
    }
  }

  async function look(before) {
    const text = search.value;
    if (before === -1) found = [];
    if (!text) return closeMatches();
    needle = text.toLowerCase();
    const page = await attempt(() => get(at(`${base}/log/search`, { source: log.source, text, before, limit: 100 })));
    if (!page) return;
    found.push(...page.matches);
    const searched = page.next_before === null ? 1 : 1 - page.next_before / page.size;
    matches.hidden = false;
    put(
      matches,
      h("div", { class: "bar" }, h("b", null, `${count(found.length)} ${found.length === 1 ? "line" : "lines"} with “${text}”, newest first`), h("span", { class: "quiet small" }, page.next_before === null ? "" : `${percent(searched)} of the log searched`), h("span", { class: "grow" }), page.next_before !== null && h("button", { type: "button", class: "small", onclick: () => look(page.next_before) }, "Search further back"), h("button", { type: "button", class: "small plain", onclick: closeMatches }, "Close")),
      h("div", { class: "match-list", tabindex: "0", role: "region", "aria-label": "Matches" }, found.map((one) => h("button", { type: "button", class: "match", onclick: () => goTo(one.offset) }, lineOf(one.line)))),
    );
    paint();
  }

  function closeMatches() {
    matches.hidden = true;
    needle = "";
    if (log) paint();
  }

  async function goTo(offset) {
    following = false;
    const index = await attempt(() => log.around(offset).then((line) => ({ line })));
    if (!index) return;
    draw();
    view.scrollTop = Math.max(0, index.line * LINE - view.clientHeight / 2);
    tell();
  }

  return { element, refresh };
}
