// Jobs that are over: how they ended, their digests; two of them can be compared.
import { h } from "./dom.js";
import { NONE, count, iso, seconds, when } from "./format.js";
import { jobList } from "./job-list.js";
import { jobLink, state } from "./job-view.js";
import { command, empty } from "./notice.js";
import { visible } from "./visible.js";

const took = (job) => (job.started_s ? job.ended_s - job.started_s : null);
const waited = (job) => (job.started_s ?? job.ended_s) - job.submitted_s;

const COLUMNS = [
  { id: "job", label: "Job", sort: "name", cell: jobLink, text: (job) => `${job.name} ${job.id}`, class: "nowrap" },
  { id: "state", label: "State", sort: "state", cell: state, text: (job) => job.state },
  { id: "digest", label: "Digest or error", cell: result, text: (job) => job.digest || job.error, class: "wide" },
  { id: "step", label: "Steps", sort: "step", text: (job) => count(job.step), num: true },
  { id: "seconds", label: "Took", sort: "seconds", cell: (job) => seconds(took(job)), text: (job) => took(job) ?? NONE, num: true, class: "nowrap" },
  { id: "waited", label: "Waited", sort: "waited", cell: (job) => seconds(waited(job)), text: waited, num: true, class: "nowrap" },
  { id: "failures", label: "Failures", sort: "failures", text: (job) => job.failures, num: true },
  { id: "tenant", label: "Tenant", sort: "tenant", text: (job) => job.tenant },
  { id: "owner", label: "Owner", sort: "owner", text: (job) => job.owner },
  { id: "ended", label: "Ended", sort: "ended", cell: (job) => when(job.ended_s), text: (job) => iso(job.ended_s), class: "nowrap" },
];

function result(job) {
  if (job.digest) return h("code", { title: job.digest }, job.digest.slice(0, 24));
  const text = visible(job.error.split("\n").at(0) ?? "");
  return h("span", { class: job.state === "failed" ? "clip bad" : "clip quiet", title: visible(job.error) }, text || NONE);
}

export function show(main) {
  const bulk = (jobs) => {
    const href = jobs.length === 2 ? `/compare?a=${encodeURIComponent(jobs[0].id)}&b=${encodeURIComponent(jobs[1].id)}` : null;
    return href ? h("a", { class: "button small", href, "data-action": "compare" }, "Compare") : h("span", { class: "small quiet" }, "select two to compare them");
  };
  const none = () => empty("No job has ended yet", "When one does, its digest is here: the same job gives the same digest on any devices.", command("isoscale jobs --watch"));
  jobList(main, { title: "History", name: "history", columns: COLUMNS, states: "ended", sort: "ended", bulk, none });
}
