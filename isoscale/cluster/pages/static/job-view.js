// What every page shows of a job in the same way: its state, its colour and pattern, its progress, what waits or comes.
import { post } from "./api.js";
import { h, icon } from "./dom.js";
import { NONE, count, figure, now, plural, seconds, when } from "./format.js";
import { attempt, question, toast } from "./notice.js";

export const LIVE = ["queued", "starting", "running", "resizing", "pausing", "paused"];
export const ENDED = ["finished", "failed", "cancelled"];
export const STATES = [...LIVE, ...ENDED];

const HUES = 8;
const PATTERNS = 5;

export function state(job) {
  const cancelling = job.wanted === "cancel" && !ENDED.includes(job.state);
  return h("span", { class: "state", "data-state": job.state }, icon(job.state), cancelling ? "cancelling" : job.state);
}

// 40 combinations before one repeats; whatever the colour, the job's name is written beside it.
export function colours(id) {
  const number = Number(String(id).replace(/\D/g, "")) || [...String(id)].reduce((sum, letter) => sum + letter.charCodeAt(0), 0);
  return `job-colour hue-${number % HUES} pattern-${number % PATTERNS}`;
}

export const swatch = (id) => h("span", { class: `swatch ${colours(id)}`, "aria-hidden": "true" });
export const address = (id) => `/jobs/${encodeURIComponent(id)}`;

export function jobLink(job) {
  return h("span", { class: "two" }, h("a", { class: "name", href: address(job.id) }, job.name), h("span", { class: "small quiet mono" }, job.id));
}

export function progress(job) {
  if (!job.total) return h("span", null, job.step ? count(job.step) : h("span", { class: "quiet" }, NONE));
  return h(
    "span",
    { class: "two steps" },
    h("span", null, count(job.step), h("span", { class: "quiet" }, ` / ${count(job.total)}`)),
    h("progress", { max: job.total, value: Math.min(job.step, job.total), "aria-label": `${job.step} of ${job.total} steps` }),
  );
}

// Devices that it holds, of those that it may have.
export function devices(job) {
  if (ENDED.includes(job.state)) return h("span", { class: "quiet" }, NONE);
  return h("span", null, String(job.devices.length), h("span", { class: "quiet" }, ` / ${job.max_devices}`));
}

// When it will start, if it waits; when it will end, if it runs; when it ended, if it is over.
export function forecast(job) {
  const { why } = job;
  if (job.ended_s) return h("span", { class: "two" }, when(job.ended_s), h("span", { class: "small quiet" }, took(job)));
  const waits = why.position !== null && why.position !== undefined;
  const t = waits ? why.estimated_start_s : why.estimated_end_s;
  const range = waits ? why.start_range_s : why.end_range_s;
  if (!t) return h("span", { class: "quiet" }, "unknown");
  // A forecast that has passed is about to come true, or wrong; either way nobody knows better.
  const moment = t < now() ? "any moment" : when(t);
  return h("span", { class: "two" }, h("span", null, waits ? "starts " : "ends ", moment), h("span", { class: "small quiet" }, range ? `± ${seconds((range[1] - range[0]) / 2)}` : ""));
}

const took = (job) => (job.started_s ? `took ${seconds(job.ended_s - job.started_s)}` : "never started");

export function reason(job) {
  return h("span", { class: "clip", title: job.why.text }, job.why.text);
}

export const loss = (job) => figure(job.loss);
export const speed = (job) => (job.steps_per_s ? `${figure(job.steps_per_s)}/s` : NONE);

// ---- what can be done ----

const VERBS = {
  pause: { label: "Pause", text: "It writes a checkpoint and gives its devices up. Nothing of it is lost.", done: "pausing" },
  resume: { label: "Resume", done: "resumed" },
  cancel: { label: "Cancel", danger: true, text: "It ends without a result. Its checkpoints and logs stay.", done: "cancelling" },
  priority: { label: "Priority", field: "priority" },
  scale: { label: "Devices", field: "devices" },
};

export const mayChange = (info) => info.role !== "viewer";

// A button for each verb that makes sense now, and no other.
export function actionButtons(job, info, after) {
  if (!mayChange(info)) return [];
  return job.actions.map((verb) => {
    const { label, danger } = VERBS[verb] ?? { label: verb };
    return h("button", { type: "button", class: danger ? "danger" : "", "data-action": verb, onclick: () => act(verb, [job], after) }, label);
  });
}

// On one job or many; each is asked for by itself, and what failed is told.
export async function act(verb, jobs, after = () => {}) {
  const { label, text, danger, field, done } = VERBS[verb] ?? { label: verb };
  const whom = jobs.length === 1 ? `${jobs[0].name} (${jobs[0].id})` : plural(jobs.length, "job");
  let body;
  if (field || text) {
    const most = Math.min(...jobs.map((job) => job.workers));
    const fields = {
      priority: [{ label: "Priority: higher goes first", name: "priority", type: "number", step: "1", min: "-1000000", max: "1000000", value: jobs[0].priority, required: true }],
      devices: [{ label: `At most so many devices (0: as submitted, ${most} at most)`, name: "devices", type: "number", step: "1", min: "0", max: most, value: jobs[0].max_devices, required: true }],
    }[field];
    const answer = await question({ title: `${label}: ${whom}`, text, fields, confirm: label, danger });
    if (!answer) return;
    if (field) body = { [field]: Number(answer[field]) };
  }
  const said = done ?? `${field} changed`;
  let number = 0;
  for (const job of jobs) {
    if (await attempt(() => post(`/api/jobs/${encodeURIComponent(job.id)}/${verb}`, body))) number += 1;
  }
  if (number) toast(jobs.length === 1 ? `${jobs[0].id}: ${said}` : `${number} of ${plural(jobs.length, "job")}: ${said}`);
  after();
}
