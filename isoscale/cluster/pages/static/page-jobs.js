// All jobs: why each is where it is, its place in the queue, its forecast; many at once can be cancelled or moved.
import { h } from "./dom.js";
import { iso, when } from "./format.js";
import { jobList } from "./job-list.js";
import { ENDED, act, devices, forecast, jobLink, loss, mayChange, progress, reason, speed, state } from "./job-view.js";
import { command, empty } from "./notice.js";

const COLUMNS = [
  { id: "job", label: "Job", sort: "name", cell: jobLink, text: (job) => `${job.name} ${job.id}`, class: "nowrap" },
  { id: "state", label: "State", sort: "state", cell: state, text: (job) => (job.wanted === "cancel" && !ENDED.includes(job.state) ? "cancelling" : job.state) },
  { id: "why", label: "Why", cell: reason, text: (job) => job.why.text, class: "wide" },
  { id: "devices", label: "Devices", cell: devices, text: (job) => `${job.devices.length}/${job.max_devices}`, num: true, class: "nowrap" },
  { id: "step", label: "Step", sort: "step", cell: progress, text: (job) => (job.total ? `${job.step}/${job.total}` : job.step), class: "nowrap" },
  { id: "loss", label: "Loss", text: loss, num: true },
  { id: "speed", label: "Steps/s", text: speed, num: true },
  { id: "priority", label: "Priority", sort: "priority", text: (job) => job.priority, num: true },
  { id: "tenant", label: "Tenant", sort: "tenant", text: (job) => job.tenant },
  { id: "submitted", label: "Submitted", sort: "submitted", cell: (job) => when(job.submitted_s), text: (job) => iso(job.submitted_s), class: "nowrap" },
  { id: "forecast", label: "Forecast", sort: "position", cell: forecast, text: forecastText, class: "nowrap" },
];

function forecastText(job) {
  if (job.ended_s) return `ended ${iso(job.ended_s)}`;
  const t = job.why.position ? job.why.estimated_start_s : job.why.estimated_end_s;
  return t ? `${job.why.position ? "starts" : "ends"} ${iso(t)}` : "";
}

export function show(main, info) {
  const bulk = (jobs, after) => {
    const able = jobs.filter((job) => job.actions.length);
    const button = (verb, label, look) => h("button", { type: "button", class: `small ${look}`, "data-action": verb, disabled: !able.length, onclick: () => act(verb, able, after) }, label);
    return [button("cancel", "Cancel", "danger"), button("priority", "Priority", "")];
  };
  const none = () => empty("No job was submitted yet", "A script written for N logical workers runs on however many devices there are:", command("isoscale submit train.py --workers 4"));
  jobList(main, { title: "Jobs", name: "jobs", columns: COLUMNS, states: "", sort: "number", bulk: mayChange(info) ? bulk : null, none });
}
