// Two jobs side by side: whether they are the same computation, and if not, from which step on.
import { addressState, setTwin } from "./address.js";
import { at, get } from "./api.js";
import { makeChart } from "./chart.js";
import { h, put } from "./dom.js";
import { NONE, count, figure, plural, seconds, when } from "./format.js";
import { address, state } from "./job-view.js";
import { keepFresh } from "./live.js";
import { empty, problem } from "./notice.js";
import { csvButton, makeTable } from "./table.js";

const POINTS = 400;
// What differs between any two jobs, and says nothing of what they compute.
const INCIDENTAL = { Job: true, Ended: true, Took: true };

export function show(main) {
  const chosen = addressState({ a: "", b: "" }, () => refresh());
  const verdict = h("div", { class: "verdict" });
  const failure = h("div");
  const form = h(
    "form",
    { class: "bar", onsubmit: (event) => (event.preventDefault(), chosen.set(Object.fromEntries(new FormData(form)))) },
    h("input", { name: "a", "aria-label": "First job", placeholder: "j1", value: chosen.get("a"), size: 8, "data-search": true, required: true }),
    h("span", { class: "quiet" }, "with"),
    h("input", { name: "b", "aria-label": "Second job", placeholder: "j2", value: chosen.get("b"), size: 8, required: true }),
    h("button", { type: "submit" }, "Compare"),
  );
  const verdictOf = (row) => (row.what in INCIDENTAL || row.a === NONE ? NONE : row.a === row.b ? "same" : "different");
  const columns = [
    { id: "what", label: "What", text: (row) => row.what },
    { id: "a", label: "First", cell: (row) => row.show?.a ?? row.a, text: (row) => row.a },
    { id: "b", label: "Second", cell: (row) => row.show?.b ?? row.b, text: (row) => row.b },
    { id: "same", label: "Same", cell: (row) => h("span", { class: verdictOf(row) === "different" ? "bad" : "quiet" }, verdictOf(row)), text: verdictOf },
  ];
  const table = makeTable({ name: "compare", label: "Comparison", columns, keyOf: (row) => row.what });
  const chart = makeChart({ name: "loss", title: "Loss", x: "step", large: true, unit: "solid: first, dashed: second" });
  const body = h("div", { class: "stack" });
  put(main, h("div", { class: "head" }, h("div", null, h("h1", null, "Compare two jobs"), h("p", { class: "about" }, "The same code, seed and batch plan give the same bits on any devices; this shows where two jobs part.")), h("div", { class: "actions" }, form)), failure, body);
  put(body, verdict, chart.element, h("section", { class: "panel" }, h("header", null, h("h2", null, "What they are"), h("div", { class: "actions" }, csvButton(table))), table.element));

  async function load() {
    const { a, b } = chosen.all();
    body.hidden = !a || !b;
    put(failure, body.hidden && empty("Which two?", "Give two ids above, or select two jobs in the history.", h("a", { class: "button", href: "/history" }, "History")));
    if (body.hidden) return;
    const path = at("/api/compare", { a, b });
    setTwin(path);
    const found = await get(path);
    tell(found);
    table.update(rowsOf(found));
    // The same buckets for both, so that equal losses are equal lines.
    const steps = Math.max(found.a.step, found.b.step, 1);
    const series = await Promise.all([a, b].map((id) => get(at(`/api/jobs/${encodeURIComponent(id)}/series`, { names: "loss", points: POINTS, begin: 1, end: steps }))));
    const [first, second] = series.map((one) => one.series.find((line) => line.name === "loss"));
    const parted = found.first_difference;
    const marked = parted ? [{ x: parted.step, tone: "bad", text: `differ from here: ${figure(parted.a)} and ${figure(parted.b)}` }] : [];
    chart.update(first ?? second, { also: first && second, marked });
  }

  function tell(found) {
    const parted = found.first_difference ?? found.first_audit_difference;
    const equal = !parted && found.steps_compared > 0;
    const title = equal ? `Equal in all ${plural(found.steps_compared, "step")} that both have` : parted ? `They part at step ${count(parted.step)}` : "Nothing to compare yet";
    // Equal as far as both go, but one went further: neither good nor bad.
    verdict.dataset.tone = parted ? "bad" : equal && found.same_digest !== false ? "good" : "";
    put(verdict, h("h2", null, title), h("p", { class: "soft" }, found.text));
  }

  const refresh = keepFresh(load, { everyMs: 10_000, failed: (error) => ((body.hidden = true), put(failure, problem(error))) });
}

function rowsOf(found) {
  const jobs = [found.a, found.b];
  const row = (what, text, shown = null) => ({ what, a: text(jobs[0]), b: text(jobs[1]), show: shown && { a: shown(jobs[0]), b: shown(jobs[1]) } });
  return [
    row("Job", (job) => `${job.name} ${job.id}`, (job) => h("a", { href: address(job.id) }, `${job.name} (${job.id})`)),
    row("State", (job) => job.state, state),
    { what: "Code", ...alike(found.same_code) },
    row("Digest", (job) => job.digest || NONE, (job) => h("code", { class: "wrap" }, job.digest || NONE)),
    row("Steps", (job) => count(job.step)),
    row("Logical workers", (job) => count(job.workers)),
    row("Ended", (job) => (job.ended_s ? String(job.ended_s) : NONE), (job) => when(job.ended_s)),
    row("Took", (job) => (job.started_s && job.ended_s ? seconds(job.ended_s - job.started_s) : NONE)),
    { what: "Batch plan", ...alike(!found.batches_differ) },
    ...found.options.filter((one) => one.name !== "workers").map((one) => ({ what: `Option ${one.name}`, a: one.a, b: one.b })),
  ];
}

// Of what is compared, but too long to be shown.
function alike(same) {
  return same ? { a: "A", b: "A" } : { a: "A", b: "B" };
}
