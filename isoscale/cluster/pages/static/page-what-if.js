// What if: the present queue, or the last day, under other policies, by the simulator that drives the same scheduler.
import { addressState, setTwin } from "./address.js";
import { get, post, remove } from "./api.js";
import { h, keyed, put, setText } from "./dom.js";
import { NONE, count, percent, plural, seconds } from "./format.js";
import { gantt } from "./gantt.js";
import { mayChange } from "./job-view.js";
import { attempt, empty, problem } from "./notice.js";
import { csvButton, makeTable } from "./table.js";

const POLL_MS = 500;
// Of names in the address: options of a policy have commas.
const BETWEEN = "|";
const USUAL = ["fifo", "easyscale", "srtf"];
// Which is better: less of it, or more.
const FIGURES = [
  ["mean_jct_s", "Mean completion", seconds, Math.min],
  ["p50_jct_s", "Median", seconds, Math.min],
  ["p99_jct_s", "p99", seconds, Math.min],
  ["mean_queue_s", "Mean wait", seconds, Math.min],
  ["makespan_s", "All done after", seconds, Math.min],
  ["allocated_utilisation", "Utilisation", percent, Math.max],
  ["rescales", "Rescales", count, Math.min],
  ["jobs_finished", "Finished", count, Math.max],
];

export async function show(main, info) {
  const known = Object.keys(info.policies);
  // The present one may have options: easyscale(room=true).
  const names = known.includes(info.policy) ? known : [info.policy, ...known];
  const usual = [info.policy, ...USUAL].filter((one, index, all) => names.includes(one) && all.indexOf(one) === index).slice(0, 3);
  const chosen = addressState({ source: "queue", policies: usual.join(BETWEEN), devices: "", shown: "" }, draw);
  let run = null;
  let timer = 0;
  const sources = h("div", { class: "chips", role: "group", "aria-label": "Which jobs" });
  const policies = h("div", { class: "chips", role: "group", "aria-label": "Policies" });
  const devices = h("input", { "aria-label": "Devices", placeholder: "as now, or cpu*8", value: chosen.get("devices"), size: 16, onchange: () => chosen.set({ devices: devices.value.trim() }) });
  const start = h("button", { type: "button", class: "primary", "data-action": "simulate", disabled: !mayChange(info), onclick: begin }, "Simulate");
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Progress", hidden: true });
  const doing = h("span", { class: "small quiet", role: "status" });
  const stop = h("button", { type: "button", class: "small", hidden: true, onclick: () => run && attempt(() => remove(`/api/whatif/${run.id}`)) }, "Stop");
  const columns = [
    { id: "policy", label: "Policy", cell: (row) => h("span", { class: "two" }, h("span", { class: "name" }, row.policy), row.present && h("span", { class: "small quiet" }, "the present one")), text: (row) => row.policy, class: "nowrap" },
    ...FIGURES.map(([id, label, format]) => ({ id, label, num: true, class: "nowrap", cell: (row) => h("span", { class: row.best.has(id) ? "best" : "" }, format(row[id]), row.best.has(id) && h("span", { class: "sr" }, " (best)")), text: (row) => row[id] ?? NONE })),
  ];
  const table = makeTable({ name: "whatif", label: "Policies compared", columns, keyOf: (row) => row.policy });
  const result = h("div", { class: "stack" });
  const line = (label, content) => h("div", { class: "option" }, h("span", { class: "soft" }, label), content);
  put(
    main,
    h("div", { class: "head" }, h("div", null, h("h1", null, "What if"), h("p", { class: "about" }, "The simulator runs the scheduler of this service on real jobs; nothing real is touched."))),
    h("section", { class: "panel" }, h("div", { class: "body stack" }, line("Jobs", sources), line("Policies", policies), line("Devices", devices), h("div", { class: "bar" }, start, stop, doing), bar)),
    result,
  );

  function draw() {
    const choose = (box, values, isOn, act) => keyed(box, Object.keys(values), (one) => one, (one) => h("button", { type: "button", class: "chip", "data-choice": one, onclick: () => act(one) }, values[one]), (chip, one) => chip.setAttribute("aria-pressed", String(isOn(one))));
    choose(sources, { queue: "What waits and runs now", day: "The last day again" }, (one) => chosen.get("source") === one, (one) => chosen.set({ source: one }));
    const on = () => new Set(chosen.get("policies").split(BETWEEN).filter(Boolean));
    choose(policies, Object.fromEntries(names.map((one) => [one, one === info.policy ? `${one} (present)` : one])), (one) => on().has(one), (one) => {
      const all = on();
      all.has(one) ? all.delete(one) : all.add(one);
      chosen.set({ policies: [...all].join(BETWEEN) });
    });
    for (const chip of policies.children) chip.title = info.policies[chip.dataset.choice.split("(")[0]] ?? "";
    start.disabled = !mayChange(info) || !on().size || run?.state === "running";
    if (run) shown();
  }

  async function begin() {
    const { source, policies: list, devices: wanted } = chosen.all();
    const made = await attempt(() => post("/api/whatif", { source, policies: list.split(BETWEEN).filter(Boolean), devices: wanted }));
    if (made) follow(made);
  }

  function follow(found) {
    run = found;
    setTwin(`/api/whatif/${run.id}`);
    const going = run.state === "running";
    bar.hidden = stop.hidden = !going;
    bar.value = run.progress;
    setText(doing, going ? `${run.doing}: ${percent(run.progress)} of ${plural(run.num_jobs, "job")}` : run.state === "done" ? `${plural(run.num_jobs, "job")} in ${seconds(run.seconds)}` : run.state);
    draw();
    clearTimeout(timer);
    if (going) timer = setTimeout(async () => follow((await get(`/api/whatif/${run.id}`).catch(() => null)) ?? run), POLL_MS);
  }

  function shown() {
    if (run.error) return put(result, problem({ message: run.error }));
    if (!run.results.length) return run.state === "running" ? null : put(result, none());
    const rows = run.results.map((row) => ({ ...row, best: best(row, run.results) }));
    const at = run.results.find((one) => one.policy === chosen.get("shown")) ?? run.results[0];
    const tabs = h("div", { class: "chips", role: "group", "aria-label": "Plan of" }, run.results.map((one) => h("button", { type: "button", class: "chip", "aria-pressed": String(one === at), onclick: () => chosen.set({ shown: one.policy }) }, one.policy)));
    put(
      result,
      h("section", { class: "panel" }, h("header", null, h("h2", null, "Compared"), h("span", { class: "small quiet" }, "bold: the best of each column"), h("div", { class: "actions" }, csvButton(table))), table.element),
      h("section", { class: "panel" }, h("header", null, h("h2", null, "Plan"), h("div", { class: "actions" }, tabs)), h("div", { class: "body" }, gantt(at, run))),
      run.assumed.length > 0 && h("section", { class: "panel" }, h("header", null, h("h2", null, "Assumed")), h("ul", { class: "body notes" }, run.assumed.map((one) => h("li", null, one)))),
    );
    table.update(rows);
  }

  draw();
  put(result, none());
  const earlier = await get("/api/whatif").catch(() => []);
  if (earlier.length) follow(await get(`/api/whatif/${earlier.at(-1).id}`));
  document.body.dataset.ready = "yes";
}

const none = () => empty("Nothing was simulated yet", "Choose policies and press Simulate: each gets the same jobs, devices and learned speeds.");

function best(row, all) {
  const found = new Set();
  for (const [id, , , choose] of FIGURES) {
    const values = all.map((one) => one[id]).filter((value) => value !== null && value !== undefined);
    if (values.length > 1 && new Set(values).size > 1 && row[id] === choose(...values)) found.add(id);
  }
  return found;
}
