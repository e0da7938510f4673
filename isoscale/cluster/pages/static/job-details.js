// What a job is: where it came from, what it asked for, its result, and the commands that prove or repeat it.
import { get } from "./api.js";
import { h, put } from "./dom.js";
import { count, seconds, when } from "./format.js";
import { address } from "./job-view.js";
import { command, copy } from "./notice.js";

const WORDS = {
  verify: ["Verify", "Trains it again, elastically and with stock DDP, and compares every bit."],
  again: ["Run it again", "The same code, seed and batch plan on any executors: it ends with the same digest."],
  replay: ["Replay", "Trains up to this step in one process and compares every loss; --logical-rank stops in the debugger."],
  report: ["Report", "The page of this run as one file."],
};

export function details(base, jobOf) {
  const facts = h("dl", { class: "facts" });
  const commands = h("div", { class: "stack" });
  const panel = (title, content) => h("section", { class: "panel" }, h("header", null, h("h2", null, title)), h("div", { class: "body" }, content));
  const element = h("div", { class: "columns" }, panel("The job", facts), panel("Prove it, repeat it", commands));
  let shown = "";

  async function refresh() {
    const job = jobOf();
    const found = await get(`${base}/commands`);
    const key = JSON.stringify([job, found]);
    if (key === shown) return;
    shown = key;
    const rows = [
      ["Script", h("code", null, job.script)],
      ["Owner", `${job.owner}, tenant ${job.tenant}`],
      ["Logical workers", count(job.workers)],
      ["Devices", `${job.min_devices} to ${job.max_devices}${job.devices.length ? `, now ${job.devices.join(", ")}` : ""}`],
      ["Priority", String(job.priority)],
      ["Submitted", when(job.submitted_s)],
      ["Started", when(job.started_s)],
      ["Ended", when(job.ended_s)],
      ["Waited", job.started_s ? seconds(job.started_s - job.submitted_s) : "it has not started yet"],
      ["Samples", job.samples === null ? "not told" : count(job.samples)],
      ["Failures", count(job.failures)],
      ["After", job.after.length ? job.after.map((one) => [h("a", { href: address(one) }, one), " "]) : "no other job"],
      ["Directory", h("code", null, job.directory)],
      ["Digest", job.digest ? h("span", { class: "digest" }, h("code", null, job.digest), " ", h("button", { type: "button", class: "small", onclick: () => copy(job.digest, "Digest") }, "Copy")) : "at the end"],
    ];
    put(facts, rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)]));
    put(commands, Object.entries(WORDS).filter(([name]) => found[name]).map(([name, [title, text]]) => h("div", { class: "stack tight", "data-command": name }, h("h3", null, title), h("p", { class: "small soft" }, text), command(found[name]))));
  }

  return { element, refresh };
}
