// A simulated plan: a row for each job, a block for each stretch with so many devices.
import { ticks } from "./axis.js";
import { h } from "./dom.js";
import { clock, plural, seconds } from "./format.js";
import { address, colours } from "./job-view.js";

const MOST_ROWS = 200;
// of the window, roughly: beside margins and names
const LANE_SHARE = 0.5;

export function gantt(result, run) {
  const rows = result.rows.slice(0, MOST_ROWS);
  const times = rows.flatMap((row) => row.spans.flatMap(([from, to]) => [from, to])).filter(Number.isFinite);
  if (!times.length) return h("p", { class: "quiet" }, "No job gets a device under this policy.");
  const begin = Math.min(...times, run.source === "queue" ? run.now_s : Infinity);
  const end = Math.max(...times, begin + 1);
  const along = (t) => `${(100 * (t - begin)) / (end - begin)}%`;
  const most = Math.max(1, ...rows.flatMap((row) => row.spans.map((span) => span[2])));
  return h(
    "div",
    { class: "gantt" },
    rows.map((row) => h("div", { class: "gantt-row" }, label(row, run), h("div", { class: "gantt-lane" }, row.spans.map(([from, to, devices]) => span(row, from, to, devices, along, most))))),
    h("div", { class: "gantt-row" }, h("span"), h("div", { class: "axis" }, ticks(begin, end - begin, LANE_SHARE * innerWidth))),
    result.rows.length > MOST_ROWS && h("p", { class: "small quiet" }, `${result.rows.length - MOST_ROWS} more jobs are in the JSON.`),
  );
}

function label(row, run) {
  if (!row.job) return h("span", { class: "quiet" }, "another tenant's");
  const name = run.names?.[row.job] ?? row.name ?? row.job;
  return h("a", { href: address(row.job), title: `${name} (${row.job})` }, name);
}

function span(row, from, to, devices, along, most) {
  const title = `${plural(devices, "device")} from ${clock(from)} for ${seconds(to - from)}`;
  const one = h("span", { class: `gantt-span ${colours(row.job || "others")}`, title }, h("span", null, String(devices)));
  one.style.left = along(from);
  one.style.right = `calc(100% - ${along(to)})`;
  // Taller with more devices, never too low to read.
  one.style.height = `${Math.round(10 + (14 * devices) / most)}px`;
  return one;
}
