// Series of a job as charts: by step or by time; a part of them by dragging; what changed is marked.
import { addressState } from "./address.js";
import { at, get } from "./api.js";
import { makeChart } from "./chart.js";
import { h, keyed, put, setText } from "./dom.js";
import { count, figure, plural, seconds } from "./format.js";
import { ENDED } from "./job-view.js";

const POINTS = 400;
// In this order; whatever else a script logs follows under its own name.
const KNOWN = {
  loss: { title: "Loss", tone: "hue-0" },
  steps_per_s: { title: "Throughput", unit: "steps per second", tone: "hue-2", min: 0 },
  batch_size: { title: "Batch size", unit: "per logical worker", tone: "hue-1", step: true, min: 0 },
  learning_rate: { title: "Learning rate", tone: "hue-3", step: true, min: 0 },
  noise_scale: { title: "Noise scale", unit: "gradient, in samples", tone: "hue-5", min: 0 },
  executors: { title: "Executors", tone: "hue-6", step: true, min: 0 },
  step_s: { title: "Time of a step", tone: "hue-7", min: 0, format: seconds },
};
const MISSING = {
  batch_size: "The batch size has not changed.",
  noise_scale: "The noise scale is not measured (--measure-noise K does).",
};

export function charts(base, jobOf) {
  const address = addressState({ by: "step", begin: "", end: "", scale: "linear" }, () => rebuild());
  const grid = h("div", { class: "charts" });
  const reading = h("span", { class: "small quiet" });
  const tools = h("div", { class: "bar" });
  const missing = h("p", { class: "small quiet" });
  const element = h("section", { class: "stack", "aria-label": "Charts" }, tools, grid, missing);
  let made = new Map();
  let story = null;
  let settled = "";
  const lasts = new Map();

  function choice(name, values) {
    return h("div", { class: "chips", role: "group", "aria-label": name }, Object.entries(values).map(([value, label]) => h("button", { type: "button", class: "chip", "aria-pressed": String(address.get(name) === value), onclick: () => address.set({ [name]: value, ...(name === "by" ? { begin: "", end: "" } : {}) }) }, label)));
  }

  function drawTools() {
    const all = address.get("begin") !== "" && h("button", { type: "button", class: "small", onclick: () => zoom(null, null) }, "Show all");
    put(tools, h("h2", null, "Training"), reading, h("span", { class: "grow" }), all, choice("by", { step: "By step", time: "By time" }), choice("scale", { linear: "Linear", log: "Log" }));
  }

  function rebuild() {
    for (const chart of made.values()) chart.destroy();
    made = new Map();
    grid.keyed = undefined;
    settled = "";
    drawTools();
    refresh().catch(() => null);
  }

  const zoom = (begin, end) => address.set({ begin: begin === null ? "" : begin.toFixed(address.get("by") === "step" ? 0 : 3), end: end === null ? "" : end.toFixed(address.get("by") === "step" ? 0 : 3) });

  function chartOf(name) {
    if (!made.has(name)) {
      const { title = name, ...look } = KNOWN[name] ?? { tone: "hue-4" };
      const chart = makeChart({ name, title, x: address.get("by"), format: figure, sync: "job", onZoom: zoom, ...look });
      if (address.get("scale") === "log" && (name === "loss" || !KNOWN[name])) chart.setLog(true);
      made.set(name, chart);
    }
    return made.get(name);
  }

  function marks() {
    if (!story) return [];
    const byStep = address.get("by") === "step";
    const place = (one) => (byStep ? one.step : story.start + one.t);
    const rescales = story.rescales.map((one) => ({ x: place(one), tone: "ink-3", dash: true, text: `${one.num_before} → ${plural(one.num_after, "executor")}, pause ${seconds(one.pause_s)}: ${one.reason}` }));
    const batches = story.batches.map((one) => ({ x: place(one), tone: "hold", dash: true, text: `batch ${one.before} → ${one.after}: ${one.reason}` }));
    const faults = byStep ? [] : story.marks.map((one) => ({ x: story.start + one.t, tone: "bad", text: one.text }));
    return [...rescales, ...batches, ...faults];
  }

  async function refresh() {
    const { by, begin, end } = address.all();
    const job = jobOf();
    // What is over does not change any more.
    const key = JSON.stringify([by, begin, end, job?.state]);
    if (ENDED.includes(job?.state) && settled === key) return;
    const found = await get(at(`${base}/series`, { by, begin, end, points: POINTS }));
    const order = Object.keys(KNOWN);
    const rank = (one) => (order.includes(one.name) ? order.indexOf(one.name) : order.length);
    const series = [...found.series].sort((a, b) => rank(a) - rank(b) || (a.name < b.name ? -1 : 1));
    keyed(grid, series, (one) => one.name, (one) => chartOf(one.name).element);
    const marked = marks();
    for (const one of series) {
      lasts.set(one.name, one.last);
      const bad = one.num_bad ? ` (${count(one.num_bad)} not finite)` : "";
      const format = KNOWN[one.name]?.format ?? figure;
      chartOf(one.name).update(one, { last: one.last, said: format(one.last) + bad, marked });
    }
    setText(missing, Object.entries(MISSING).filter(([name]) => series.length && !series.some((one) => one.name === name)).map(([, text]) => text).join(" "));
    const whole = found.read_bytes >= found.size;
    setText(reading, whole ? "" : `reading the log: ${Math.round((100 * found.read_bytes) / found.size)} %`);
    if (!series.length) setText(missing, "Nothing was trained yet. Charts appear with the first step.");
    if (whole) settled = key;
    else setTimeout(() => refresh().catch(() => null), 100);
  }

  function mark(found) {
    story = found;
  }

  drawTools();
  return { element, refresh, mark, last: (name) => lasts.get(name) ?? null };
}
