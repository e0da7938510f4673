// Where the logical workers lived: a lane for each, blocks for the executor that ran it; rescales and faults across.
import { get } from "./api.js";
import { ticks } from "./axis.js";
import { h, put, setText } from "./dom.js";
import { NONE, clock, count, percent, plural, seconds, when } from "./format.js";
import { csvButton, makeTable } from "./table.js";

const MOST_LANES_LABELLED = 32;
const MOST_BLOCKS = 3000;

const COLUMNS = [
  { id: "when", label: "When", cell: (row) => when(row.at, "clock"), text: (row) => clock(row.at), class: "nowrap" },
  { id: "step", label: "Step", text: (row) => (row.step === null ? NONE : count(row.step)), num: true },
  { id: "what", label: "What", cell: (row) => h("span", { class: row.bad ? "bad" : "" }, row.what), text: (row) => row.what },
  { id: "pause", label: "Pause", text: (row) => (row.pause === null ? NONE : seconds(row.pause)), num: true, class: "nowrap" },
  { id: "why", label: "Why", cell: (row) => h("span", { class: "clip" }, row.why), text: (row) => row.why, class: "wide" },
];

export function timeline(base, told) {
  const summary = h("span", { class: "small quiet" });
  const lanes = h("div", { class: "lanes" });
  const axis = h("div", { class: "axis", "aria-hidden": "true" });
  const figure = h("div", { class: "timeline", role: "img", "aria-label": "Executors and logical workers over time" }, lanes, axis);
  const table = makeTable({ name: "changes", label: "Rescales and faults", columns: COLUMNS, keyOf: (row) => row.key });
  const none = h("p", { class: "notes" }, "No rescale and no fault so far.");
  const changes = h("div");
  const element = h(
    "section",
    { class: "panel", "aria-label": "Executors and logical workers" },
    h("header", null, h("h2", null, "Logical workers and the executors that ran them"), summary, h("div", { class: "actions" }, csvButton(table))),
    h("div", { class: "body" }, figure),
    changes,
  );
  let drawn = "";

  async function refresh() {
    const found = await get(`${base}/timeline`);
    told(found);
    const share = found.executor_s ? ` · ${percent(found.idle ?? 0)} of the executors' time idle` : "";
    figure.parentElement.hidden = !found.seconds;
    setText(summary, found.seconds ? `${seconds(found.seconds)} · ${plural(found.rescales.length, "rescale")}, ${plural(found.marks.length, "mark")} · longest gap ${seconds(found.longest_gap_s)}${share}` : "not started");
    const key = `${found.seconds}|${found.size}`;
    if (key === drawn) return;
    drawn = key;
    draw(found);
    const rows = rowsOf(found);
    put(changes, rows.length ? table.element : none);
    table.update(rows);
  }

  function draw(found) {
    const total = Math.max(found.seconds, 0.001);
    const workers = Math.max(1, found.num_logical_workers);
    const along = (t) => `${(100 * Math.min(Math.max(t, 0), total)) / total}%`;
    const height = workers <= 8 ? 26 : workers <= MOST_LANES_LABELLED ? 18 : Math.max(3, Math.floor(480 / workers));
    lanes.style.height = `${height * workers}px`;
    const blocks = found.lives.flatMap((life) => life.stays.map((stay) => ({ life, stay }))).slice(-MOST_BLOCKS);
    put(
      lanes,
      blocks.map(({ life, stay }) => block(life, stay, { along, total, height })),
      found.rescales.map((one) => line("rescale", one.t, `${one.num_before} → ${one.num_after}: pause ${seconds(one.pause_s)}, ${one.reason}`, along)),
      found.batches.map((one) => line("batch", one.t, `batch ${one.before} → ${one.after} from step ${one.step}`, along)),
      found.marks.map((one) => line(`mark ${one.kind}`, one.t, `${one.kind}: ${one.text}`, along, one.kind === "lost" || one.kind === "failed" ? "✕" : "!")),
      workers <= MOST_LANES_LABELLED ? Array.from({ length: workers }, (_, rank) => lane(rank, height)) : [],
    );
    put(axis, ticks(found.start, total, lanes.clientWidth || innerWidth));
    figure.setAttribute("aria-label", `${plural(workers, "logical worker")} on ${plural(found.lives.length, "executor")} over ${seconds(found.seconds)}; ${plural(found.rescales.length, "rescale")}`);
  }

  return { element, refresh };
}

function lane(rank, height) {
  const label = h("span", { class: "lane" }, String(rank));
  label.style.top = `${rank * height}px`;
  label.style.height = `${height}px`;
  return label;
}

function block(life, stay, { along, total, height }) {
  const range = stay.first === stay.last ? `logical worker ${stay.first}` : `logical workers ${stay.first} to ${stay.last}`;
  const title = `executor ${life.executor} (${life.kind}): ${range}, ${seconds(stay.end - stay.start)}${life.ending ? `; ${life.ending} ${life.reason}` : ""}`;
  const colours = `job-colour hue-${life.executor % 8} pattern-${life.executor % 5}`;
  const one = h("span", { class: `stay ${colours}`, title, "data-executor": life.executor }, h("span", null, `executor ${life.executor}`));
  one.style.left = along(stay.start);
  one.style.width = `${(100 * Math.max(stay.end - stay.start, 0)) / total}%`;
  one.style.top = `${stay.first * height}px`;
  one.style.height = `${(stay.last - stay.first + 1) * height - 1}px`;
  return one;
}

function line(kind, t, title, along, glyph = "") {
  return moved(h("span", { class: `cross ${kind}`, title }, glyph && h("b", null, glyph)), along(t));
}

function moved(element, left) {
  element.style.left = left;
  return element;
}

function rowsOf(found) {
  const rescales = found.rescales.map((one) => ({ t: one.t, step: one.step, what: `${one.num_before} → ${plural(one.num_after, "executor")}`, pause: one.pause_s, why: one.reason }));
  const batches = found.batches.map((one) => ({ t: one.t, step: one.step, what: `batch ${one.before} → ${one.after}`, pause: null, why: one.reason }));
  const marks = found.marks.map((one) => ({ t: one.t, step: null, what: `${one.kind}${one.executor === null ? "" : `: executor ${one.executor}`}`, pause: null, why: one.text, bad: one.kind === "lost" || one.kind === "failed" }));
  return [...rescales, ...batches, ...marks].sort((a, b) => b.t - a.t).slice(0, 200).map((row, index, all) => ({ ...row, at: found.start + row.t, key: `${all.length - index}|${row.t}|${row.what}` }));
}
