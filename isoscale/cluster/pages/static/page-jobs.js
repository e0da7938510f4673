// All jobs: why each is where it is, its place, its forecast. Sorted and filtered by the service, so ten thousand are fine.
import { addressState, setTwin } from "./address.js";
import { at, get } from "./api.js";
import { h, keyed, put, setText } from "./dom.js";
import { count, iso, plural, when } from "./format.js";
import { ENDED, STATES, act, devices, forecast, jobLink, loss, mayChange, progress, reason, speed, state } from "./job-view.js";
import { keepFresh } from "./live.js";
import { command, empty, problem } from "./notice.js";
import { csvButton, makeTable, tableSkeleton } from "./table.js";

const LIMIT = 100;
const DEFAULTS = { state: "", tenant: "", text: "", sort: "number", descending: "true", page: "0" };

const COLUMNS = [
  { id: "job", label: "Job", sort: "name", cell: jobLink, text: (job) => `${job.name} ${job.id}`, class: "nowrap" },
  { id: "state", label: "State", sort: "state", cell: state, text: (job) => (job.wanted === "cancel" && !ENDED.includes(job.state) ? "cancelling" : job.state) },
  { id: "why", label: "Why", cell: reason, text: (job) => `${job.why.position ? `${job.why.position}: ` : ""}${job.why.text}`, class: "wide" },
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
  const address = addressState(DEFAULTS, () => refresh());
  let found = null;
  const said = h("p", { class: "about" });
  const search = h("input", { type: "search", "data-search": true, placeholder: "Search name, id, owner, script  ( / )", "aria-label": "Search jobs", value: address.get("text"), oninput: typed });
  const tenants = h("select", { "aria-label": "Tenant", onchange: () => address.set({ tenant: tenants.value, page: "0" }) });
  const chips = h("div", { class: "chips", role: "group", "aria-label": "States" });
  const table = makeTable({
    name: "jobs", label: "Jobs", columns: COLUMNS, keyOf: (job) => job.id, walk: true,
    sorting: () => ({ by: address.get("sort"), descending: address.get("descending") === "true" }),
    onSort: sortBy, selectable: mayChange(info), onSelect: selected,
  });
  const bulk = h("div", { class: "selection", hidden: true });
  const body = h("div", null, tableSkeleton());
  const pages = h("div", { class: "pages" });
  const range = h("span");
  put(
    main,
    h("div", { class: "head" }, h("div", null, h("h1", null, "Jobs"), said), h("div", { class: "actions" }, search, tenants)),
    h("div", { class: "bar" }, chips),
    h("section", { class: "panel" }, h("header", null, bulk, range, h("div", { class: "actions" }, csvButton(table))), body, h("footer", null, pages)),
  );

  let typing = 0;
  function typed() {
    clearTimeout(typing);
    typing = setTimeout(() => address.set({ text: search.value.trim(), page: "0" }, { isStep: false }), 200);
  }

  function sortBy(by) {
    const same = address.get("sort") === by;
    const first = ["name", "tenant", "state", "position"].includes(by) ? "false" : "true";
    address.set({ sort: by, descending: same ? String(address.get("descending") !== "true") : first, page: "0" });
  }

  function selected(ids) {
    const jobs = (found?.jobs ?? []).filter((job) => ids.includes(job.id) && job.actions.length);
    bulk.hidden = !ids.length;
    const after = () => (table.clear(), refresh());
    put(
      bulk,
      h("b", null, `${ids.length} selected`),
      h("button", { type: "button", class: "small danger", "data-action": "cancel", disabled: !jobs.length, onclick: () => act("cancel", jobs, after) }, "Cancel"),
      h("button", { type: "button", class: "small", "data-action": "priority", disabled: !jobs.length, onclick: () => act("priority", jobs, after) }, "Priority"),
      h("button", { type: "button", class: "small plain", onclick: table.clear }, "Clear"),
    );
    range.hidden = ids.length > 0;
  }

  async function load() {
    const { page, ...filter } = address.all();
    const offset = Math.max(0, Number(page) || 0) * LIMIT;
    const path = at("/api/table", { ...filter, offset, limit: LIMIT });
    setTwin(path);
    found = await get(path);
    const { total, counts, jobs } = found;
    setText(said, summary(counts));
    fillChips(counts);
    fillTenants(found.tenants);
    if (jobs.length) {
      if (body.firstChild !== table.element) put(body, table.element);
      table.update(jobs);
    } else put(body, nothing());
    setText(range, total ? `${count(offset + 1)}–${count(offset + jobs.length)} of ${plural(total, "job")}` : "No job");
    const turn = (by, label, able) => h("button", { type: "button", class: "small", disabled: !able, onclick: () => address.set({ page: String(Number(page) + by) }) }, label);
    put(pages, turn(-1, "Newer", offset > 0), turn(1, "Older", offset + jobs.length < total));
    pages.parentElement.hidden = total <= LIMIT;
  }

  function nothing() {
    const { state: states, tenant, text } = address.all();
    if (states || tenant || text) {
      const clear = h("button", { type: "button", onclick: () => ((search.value = ""), address.set(DEFAULTS)) }, "Clear the filters");
      return empty("No job fits these filters", "", clear);
    }
    return empty("No job was submitted yet", "A script written for N logical workers runs on however many devices there are:", command("isoscale submit train.py --workers 4"));
  }

  function fillChips(counts) {
    const chosen = new Set(address.get("state").split(",").filter(Boolean));
    const toggle = (one) => {
      chosen.has(one) ? chosen.delete(one) : chosen.add(one);
      address.set({ state: STATES.filter((name) => chosen.has(name)).join(","), page: "0" });
    };
    keyed(chips, STATES, (one) => one, (one) => h("button", { type: "button", class: "chip", "data-filter": one, onclick: () => chips.toggle(one) }, one, h("b")), (chip, one) => {
      chip.setAttribute("aria-pressed", String(chosen.has(one)));
      setText(chip.lastElementChild, count(counts[one] ?? 0));
    });
    chips.toggle = toggle;
  }

  function fillTenants(names) {
    const wanted = ["", ...names];
    if (tenants.options.length !== wanted.length) put(tenants, wanted.map((name) => h("option", { value: name }, name || "Every tenant")));
    if (document.activeElement !== tenants) tenants.value = address.get("tenant");
    tenants.hidden = names.length < 2;
  }

  const refresh = keepFresh(load, { everyMs: 2000, failed: (error) => put(body, problem(error)) });
}

function summary(counts) {
  const live = STATES.filter((one) => !ENDED.includes(one)).reduce((sum, one) => sum + (counts[one] ?? 0), 0);
  const over = ENDED.reduce((sum, one) => sum + (counts[one] ?? 0), 0);
  return `${plural(live, "job")} not over, ${count(over)} ended`;
}
