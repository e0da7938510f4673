// One job: how it trains now, where its logical workers live, what it prints, what happened, what can be done.
import { addressState, setTwin } from "./address.js";
import { at, get } from "./api.js";
import { h, put, setText } from "./dom.js";
import { NONE, clock, count, figure, now, percent, plural, seconds, when } from "./format.js";
import { charts } from "./job-charts.js";
import { details } from "./job-details.js";
import { events } from "./job-events.js";
import { logs } from "./job-log.js";
import { timeline } from "./job-timeline.js";
import { ENDED, actionButtons, state, swatch } from "./job-view.js";
import { keepFresh } from "./live.js";
import { empty, problem } from "./notice.js";
import { stats } from "./stats.js";

const TABS = { overview: "Overview", logs: "Logs", events: "Events", details: "Details" };

export function show(main, info) {
  const alone = document.body.dataset.alone === "yes";
  const id = alone ? "run" : decodeURIComponent(location.pathname.split("/").pop());
  const base = `/api/jobs/${encodeURIComponent(id)}`;
  const address = addressState({ tab: "overview" }, () => turn());
  const title = h("h1");
  const badge = h("span");
  const about = h("p", { class: "about" });
  const buttons = h("div", { class: "actions" });
  const why = h("p", { class: "why" });
  const failure = h("div");
  const numbers = stats(["Step", "Loss", "Throughput", "Devices", "Time", "End"]);
  const bar = h("nav", { class: "tabs", "aria-label": "Parts of this job" });
  const body = h("div", { class: "tab-body" });
  put(
    main,
    h("div", { class: "head" }, h("div", null, h("div", { class: "bar" }, !alone && swatch(id), title, badge), about), buttons),
    why,
    failure,
    numbers.element,
    bar,
    body,
  );
  let shownActions = "";
  let job = null;
  let lines = null;
  let lastLoss = null;
  const parts = new Map();
  const makers = {
    overview: () => {
      lines = charts(base, () => job);
      const lives = timeline(base, (found) => lines.mark(found));
      // The timeline first: charts mark what happened.
      const refresh = async () => (await lives.refresh(), await lines.refresh());
      return { element: h("div", { class: "stack" }, lines.element, lives.element), refresh };
    },
    logs: () => logs(base),
    events: () => events(base, alone),
    details: () => details(base, () => job),
  };

  function turn() {
    const tab = TABS[address.get("tab")] ? address.get("tab") : "overview";
    put(bar, Object.entries(TABS).map(([name, label]) => h("a", { href: `?tab=${name}`, "aria-current": name === tab ? "page" : false, onclick: (event) => choose(event, name) }, label)));
    if (!parts.has(tab)) parts.set(tab, makers[tab]());
    put(body, parts.get(tab).element);
    return parts.get(tab).refresh().catch((error) => error.isGone || failed(error));
  }

  function choose(event, name) {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    address.set({ tab: name });
  }

  async function refresh() {
    job = await get(base);
    setTwin(base);
    document.title = `${job.state === "running" ? "" : `${job.state}: `}${job.name} · isoscale`;
    setText(title, job.name);
    if (badge.dataset.shown !== job.state + job.wanted) put(badge, state(job)).dataset.shown = job.state + job.wanted;
    put(about, alone ? job.directory : [h("span", { class: "mono" }, job.id), ` · ${job.tenant} · submitted `, when(job.submitted_s), ` by ${job.owner}`, job.priority ? ` · priority ${job.priority}` : ""]);
    const actions = JSON.stringify(job.actions);
    if (actions !== shownActions) put(buttons, actionButtons(job, info, fresh));
    shownActions = actions;
    if (ENDED.includes(job.state) && lastLoss === null && !lines) await readLoss().catch(() => null);
    fill();
  }

  // Of a job that is over the log knows it; the charts read that, too, but only where they are shown.
  async function readLoss() {
    const found = await get(at(`${base}/series`, { by: "step", begin: "", end: "", points: 2 }));
    if (found.read_bytes >= found.size) lastLoss = found.series.find((one) => one.name === "loss")?.last ?? "none";
  }

  function fill() {
    const over = ENDED.includes(job.state);
    why.hidden = over || !job.why.text;
    put(why, job.why.text, job.after.length ? ` After ${job.after.join(", ")}.` : "");
    put(failure, job.error && over ? problem({ message: job.error, remedy: job.exit_code === null ? "" : `exit code ${job.exit_code}` }) : null);
    const begun = job.started_s;
    numbers.set("Step", count(job.step), job.total ? `of ${count(job.total)} · ${percent(job.step / job.total)}` : "total unknown");
    numbers.set("Loss", figure(job.loss ?? lines?.last("loss") ?? (lastLoss === "none" ? null : lastLoss)), "of the last step");
    const mean = over && begun && job.step ? job.step / (job.ended_s - begun) : null;
    numbers.set("Throughput", figure(job.steps_per_s ?? mean), mean ? "steps per second, mean" : "steps per second");
    numbers.set("Devices", over ? NONE : String(job.devices.length || job.executors), `at most ${job.max_devices} · ${plural(job.workers, "logical worker")}`);
    numbers.set("Time", begun ? seconds((job.ended_s ?? now()) - begun) : NONE, begun ? "since it first started" : `has waited for ${seconds(now() - job.submitted_s)}`);
    const end = job.ended_s ?? job.why.estimated_end_s;
    const range = job.why.end_range_s;
    numbers.set("End", end ? (job.ended_s ? clock(end) : end < now() ? "soon" : `in ${seconds(end - now())}`) : NONE, job.ended_s ? job.state : range ? `± ${seconds((range[1] - range[0]) / 2)}` : "no forecast");
  }

  const failed = (error) => {
    if (error.status === 404) put(main, empty("No such job", `There is no job ${id}, or it is another tenant's.`, h("a", { class: "button", href: "/jobs" }, "All jobs")));
    else put(failure, problem(error));
  };
  const concerns = (event) => event.job === job?.id || event.job === id;
  const fresh = keepFresh(async () => {
    await refresh();
    if (!parts.size) turn();
  }, { everyMs: 1000, concerns, failed });
  keepFresh(async () => job && parts.get(address.get("tab"))?.refresh(), { everyMs: 2000, concerns });
}
