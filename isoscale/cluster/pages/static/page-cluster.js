// The cluster: who holds which device, how busy it is and was, who waits, what ended.
import { addressState, setTwin } from "./address.js";
import { at, get, post } from "./api.js";
import { makeChart } from "./chart.js";
import { makeDeviceMap } from "./devices.js";
import { h, keyed, put, setText } from "./dom.js";
import { NONE, count, figure, now, percent, plural, when } from "./format.js";
import { address, forecast, state, swatch } from "./job-view.js";
import { keepFresh } from "./live.js";
import { attempt, command, empty, question } from "./notice.js";
import { stats } from "./stats.js";

const RANGES = { "1h": 3600, "6h": 6 * 3600, "24h": 86400, "7d": 7 * 86400 };
const POINTS = 300;
const SHOWN = 6;

export function show(main, info) {
  const range = addressState({ range: "1h" }, () => again());
  const numbers = stats(["Utilisation", "Running", "Queue", "Throughput", "Lent out"]);
  const map = makeDeviceMap({ tools: (node) => (info.role === "operator" || info.role === "admin" ? nodeTools(node) : []) });
  const legend = h("ul", { class: "legend" });
  const charts = {
    utilisation: makeChart({ name: "utilisation", title: "Utilisation", x: "time", format: percent, min: 0, tone: "hue-0", sync: "cluster" }),
    queued: makeChart({ name: "queued", title: "Jobs that wait", x: "time", format: figure, min: 0, step: true, tone: "hue-1", sync: "cluster" }),
    steps_per_s: makeChart({ name: "steps_per_s", title: "Throughput", x: "time", unit: "steps per second, all jobs", min: 0, tone: "hue-2", sync: "cluster" }),
  };
  const ranges = h("div", { class: "chips", role: "group", "aria-label": "Range of time" });
  const waiting = h("ul", { class: "list", "data-list": "waiting" });
  const ended = h("ul", { class: "list", "data-list": "ended" });
  put(
    main,
    h("div", { class: "head" }, h("h1", null, "Cluster")),
    numbers.element,
    panel("Devices", h("div", { class: "body nodes" }, map.element, legend)),
    h("div", { class: "bar" }, h("h2", null, "Over time"), h("span", { class: "grow" }), ranges),
    h("div", { class: "columns three" }, Object.values(charts).map((chart) => chart.element)),
    h("div", { class: "columns" }, panel("Next in the queue", waiting, "/jobs?state=queued,paused&sort=position&descending=false", "All that wait"), panel("Ended last", ended, "/history", "History")),
  );

  async function refresh() {
    const [nodes, live, over] = await Promise.all([
      get("/api/devices"),
      get(at("/api/table", { state: "live", sort: "position", descending: "false", limit: 200 })),
      get(at("/api/table", { state: "ended", sort: "ended", descending: "true", limit: SHOWN })),
    ]);
    const names = new Map(live.jobs.map((job) => [job.id, job]));
    map.update(nodes, (id) => names.get(id)?.name ?? "");
    const all = nodes.flatMap((node) => node.devices);
    const held = all.filter((one) => one.state === "held" || one.state === "releasing").length;
    const ours = nodes.reduce((sum, node) => sum + node.num_ours, 0);
    const speed = live.jobs.reduce((sum, job) => sum + (job.steps_per_s ?? 0), 0);
    const running = (live.counts.running ?? 0) + (live.counts.resizing ?? 0);
    numbers.set("Utilisation", ours ? percent(held / ours) : NONE, `${held} of ${plural(ours, "device")}`);
    numbers.set("Running", count(running), `${live.counts.starting ?? 0} starting, ${live.counts.paused ?? 0} paused`);
    // Preempted jobs wait, too: places count all of them.
    const queue = Math.max(live.counts.queued ?? 0, ...live.jobs.map((job) => job.why.position ?? 0));
    numbers.set("Queue", count(queue), queue ? "waiting for devices" : "nobody waits");
    numbers.set("Throughput", figure(speed), "steps per second");
    numbers.set("Lent out", count(all.length - ours), `of ${plural(all.length, "device")} on ${plural(nodes.length, "node")}`);
    const holders = live.jobs.filter((job) => job.devices.length);
    keyed(legend, holders, (job) => job.id, legendItem, (item, job) => setText(item.lastElementChild, plural(job.devices.length, "device")));
    fillList(waiting, live.jobs.filter((job) => job.why.position).slice(0, SHOWN), waitingItem, () => empty("Nobody waits", "Every job that was submitted has devices.", command("isoscale submit train.py --workers 4")));
    fillList(ended, over.jobs, endedItem, () => empty("No job has ended yet", "What finishes, fails or is cancelled appears here."));
  }

  async function history() {
    const span = RANGES[range.get("range")] ?? 3600;
    keyed(ranges, Object.keys(RANGES), (one) => one, (one) => h("button", { type: "button", class: "chip", onclick: () => range.set({ range: one }) }, one), (chip, one) => chip.setAttribute("aria-pressed", String(one === range.get("range"))));
    const path = at("/api/cluster/history", { begin: (now() - span).toFixed(0), points: POINTS });
    setTwin(path);
    const found = await get(path);
    const { held, capacity } = found;
    const share = (name) => held[name].map((value, i) => (capacity.value[i] ? value / capacity.value[i] : null));
    charts.utilisation.update(known({ x: held.x, value: share("value"), low: share("low"), high: share("high") }));
    charts.queued.update(known(found.queued));
    charts.steps_per_s.update(known(found.steps_per_s));
  }

  const again = keepFresh(history, { everyMs: 10_000, concerns: () => false });
  keepFresh(refresh, { everyMs: 2000 });

  function nodeTools(node) {
    const ask = async (verb, title, text, fields, done) => {
      const answer = await question({ title: `${title}: ${node.name}`, text, fields, confirm: title });
      if (!answer) return;
      const body = { count: Number(answer.count), ...(answer.within_s ? { within_s: Number(answer.within_s) } : {}) };
      await attempt(() => post(`/api/nodes/${encodeURIComponent(node.name)}/${verb}`, body), done);
      refresh();
    };
    const number = { label: "Devices", name: "count", type: "number", min: "1", max: node.num_devices, value: 1, required: true };
    const within = { label: "Within seconds (empty: as long as it takes)", name: "within_s", type: "number", min: "0.1", step: "0.1" };
    return [
      h("button", { type: "button", class: "small", "data-action": "reclaim", onclick: () => ask("reclaim", "Take back", "Jobs shrink or pause at their next step; the devices are then yours.", [number, within], "devices are free") }, "Take back"),
      h("button", { type: "button", class: "small", "data-action": "lend", onclick: () => ask("lend", "Lend again", "Devices that were taken back serve jobs again.", [number], "devices are lent again") }, "Lend again"),
    ];
  }
}

// From the first moment of which something is known: a young cluster fills its charts, too.
function known(points) {
  const first = points.value.findIndex((value) => value !== null);
  return first > 0 ? Object.fromEntries(["x", "value", "low", "high"].map((name) => [name, points[name].slice(first)])) : points;
}

function panel(title, content, href = "", more = "") {
  return h("section", { class: "panel" }, h("header", null, h("h2", null, title), href && h("a", { class: "actions small", href }, more)), content);
}

function fillList(list, items, make, none) {
  if (!items.length) return void (list.dataset.empty || (put(list, h("li", { class: "none" }, none())), (list.dataset.empty = "yes"), (list.keyed = undefined)));
  if (list.dataset.empty) put(list), delete list.dataset.empty;
  keyed(list, items, (job) => `${job.id}|${job.state}|${job.why.text}|${job.why.position}|${job.why.estimated_start_s}`, make);
}

const legendItem = (job) => h("li", null, swatch(job.id), h("a", { href: address(job.id) }, job.name), h("span", { class: "small quiet" }));

function waitingItem(job) {
  const place = h("b", { class: "place", title: "place in the queue" }, `${job.why.position}`);
  return h("li", null, place, h("span", { class: "two" }, h("a", { href: address(job.id) }, job.name), h("span", { class: "small quiet" }, job.why.text)), h("span", { class: "end small" }, forecast(job)));
}

function endedItem(job) {
  return h("li", null, state(job), h("span", { class: "two" }, h("a", { href: address(job.id) }, job.name), job.digest ? h("span", { class: "small quiet mono" }, job.digest.slice(0, 16)) : h("span", { class: "small quiet" }, job.error || job.id)), h("span", { class: "end small" }, when(job.ended_s)));
}

