// What the cluster's own logs say: why jobs wait, why devices idle, why jobs fail, and what to change.
import { setTwin } from "./address.js";
import { get, post } from "./api.js";
import { makeChart } from "./chart.js";
import { h, put } from "./dom.js";
import { NONE, count, figure, percent, plural, seconds, when } from "./format.js";
import { keepFresh } from "./live.js";
import { attempt, command, empty } from "./notice.js";
import { stats } from "./stats.js";
import { csvButton, makeTable } from "./table.js";

const SAYS = { status: "How jobs end", run_time: "How long they run", queueing: "How long they wait", failures: "Failures", retries: "Retries", load: "Load", sizes: "Sizes", kinds: "Kinds", users: "Users", own: "Changes of size", utilisation: "Utilisation", locality: "Locality", host: "Hosts" };

export function show(main, info) {
  setTwin("/api/analysis");
  const may = info.role === "operator" || info.role === "admin";
  const made = h("p", { class: "about" });
  const again = h("button", { type: "button", "data-action": "analyze", onclick: begin }, "Analyse now");
  const body = h("div", { class: "stack" });
  let drawn = "";
  put(main, h("div", { class: "head" }, h("div", null, h("h1", null, "Analysis"), made), h("div", { class: "actions" }, may && again)), body);

  async function begin() {
    await attempt(() => post("/api/analysis"));
    refresh();
  }

  async function load() {
    if (!may) return put(body, empty("For operators", "The analysis tells of every tenant's jobs; it needs the role operator."));
    const found = await get("/api/analysis");
    again.disabled = found.state === "running";
    again.hidden = !found.result && found.state !== "running";
    const key = `${found.state}|${found.made_s}`;
    if (key === drawn) return;
    drawn = key;
    put(made, found.made_s ? ["made ", when(found.made_s), found.seconds ? ` in ${seconds(found.seconds)}` : ""] : "of everything that this service has recorded");
    if (found.state === "running") put(body, h("section", { class: "panel" }, h("div", { class: "body stack" }, h("p", { class: "soft" }, "Reading the logs of all jobs …"), h("span", { class: "skeleton" }), h("span", { class: "skeleton" }))));
    else if (found.result) draw(found.result);
    else if (found.state === "failed") put(body, empty("It could not be made", found.error, command("isoscale analyze cluster/jobs/j1")));
    else put(body, empty("Not analysed yet", "Why jobs wait, why devices idle, why jobs fail, and what this cluster should change.", h("button", { type: "button", class: "primary", onclick: begin }, "Analyse now")));
  }

  function draw(result) {
    const numbers = stats(["Jobs", "Finished", "Median run", "Median wait", "Devices in use"]);
    numbers.set("Jobs", count(result.jobs), result.period.days === null ? "" : `submitted within ${seconds(86400 * result.period.days)}`);
    numbers.set("Finished", percent(result.status.share_by_jobs.passed ?? 0), "of the jobs");
    numbers.set("Median run", seconds(result.run_s.all.p50), `p99 ${seconds(result.run_s.all.p99)}`);
    numbers.set("Median wait", seconds(result.queue_s.all.p50), `p90 ${seconds(result.queue_s.all.p90)}`);
    numbers.set("Devices in use", figure(result.load.mean_in_use), `on average, ${figure(result.load.peak_in_use)} at most`);
    const load = makeChart({ name: "load", title: "Devices in use", unit: "dashed: asked for", x: "time", min: 0, large: true });
    put(body, numbers.element, advice(result.advice), load.element, findings(result.says), sizes(result), missing(result.missing));
    const { begin_s, end_s, in_use, asked } = result.load;
    const x = in_use.map((_, index) => begin_s + ((end_s - begin_s) * (index + 0.5)) / in_use.length);
    load.update({ x, value: in_use }, { also: { x, value: asked }, said: "" });
  }

  const refresh = keepFresh(load, { everyMs: 2000, concerns: () => false, failed: (error) => put(body, empty(error.message, error.remedy)) });
}

const panel = (title, content, ...tools) => h("section", { class: "panel" }, h("header", null, h("h2", null, title), h("div", { class: "actions" }, tools)), content);

function advice(found) {
  const known = Object.values(found).filter((one) => one.device_hours > 0).sort((a, b) => b.device_hours - a.device_hours);
  const items = known.map((one) => h("li", null, h("span", { class: "two wraps" }, h("b", null, one.guideline), h("span", { class: "soft" }, one.says), one.how && h("span", { class: "small quiet" }, one.how)), h("span", { class: "end" }, h("b", null, figure(one.device_hours)), h("span", { class: "small quiet" }, " device-hours"))));
  return panel("What this cluster should change", known.length ? h("ul", { class: "list" }, items) : empty("Nothing found", "No guideline would have saved device time in what was recorded so far."));
}

function findings(says) {
  return panel("Findings", h("dl", { class: "body facts" }, Object.entries(says).map(([name, text]) => [h("dt", null, SAYS[name] ?? name), h("dd", null, text)])));
}

function sizes(result) {
  const rows = Object.keys(result.run_s).filter((name) => name !== "all").map((name) => ({ name, run: result.run_s[name], wait: result.queue_s[name], jobs: result.sizes.classes[name]?.jobs ?? result.run_s[name].count, device_s: result.sizes.classes[name]?.device_s ?? null }));
  const time = (id, label, of) => ({ id, label, num: true, cell: (row) => seconds(of(row)), text: (row) => of(row) ?? NONE });
  const columns = [
    { id: "size", label: "Devices", text: (row) => row.name },
    { id: "jobs", label: "Jobs", num: true, text: (row) => count(row.jobs) },
    time("device_s", "Device time", (row) => row.device_s),
    time("run50", "Run, median", (row) => row.run.p50),
    time("run99", "Run, p99", (row) => row.run.p99),
    time("wait50", "Wait, median", (row) => row.wait?.p50),
    time("wait90", "Wait, p90", (row) => row.wait?.p90),
  ];
  const table = makeTable({ name: "sizes", label: "By size", columns, keyOf: (row) => row.name });
  table.update(rows);
  return panel("By size", table.element, csvButton(table));
}

function missing(found) {
  const entries = Object.entries(found);
  if (!entries.length) return null;
  return panel("Not told", h("div", { class: "body" }, h("details", null, h("summary", null, `${plural(entries.length, "figure")} could not be computed`), h("dl", { class: "facts" }, entries.map(([name, text]) => [h("dt", null, name), h("dd", null, `needs ${text}`)])))));
}
