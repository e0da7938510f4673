// A list of jobs with filters in its address. Sorted and filtered by the service, so ten thousand are fine.
import { addressState, setTwin } from "./address.js";
import { at, get } from "./api.js";
import { h, keyed, put, setText } from "./dom.js";
import { count, plural } from "./format.js";
import { ENDED, STATES } from "./job-view.js";
import { keepFresh } from "./live.js";
import { empty, problem } from "./notice.js";
import { csvButton, makeTable, tableSkeleton } from "./table.js";

const LIMIT = 100;
// `states`: those that it may show; `sort`: the order unless the reader says otherwise; `bulk(jobs, after)`: what can be done
// with rows that were selected, none: rows cannot be; `none`: what an empty list without a filter says.
export function jobList(main, { title, name, columns, states, sort, bulk = null, none }) {
  const DEFAULTS = { state: "", tenant: "", text: "", sort, descending: "true", page: "0" };
  const address = addressState(DEFAULTS, () => refresh());
  let found = null;
  const said = h("p", { class: "about" });
  const search = h("input", { type: "search", "data-search": true, placeholder: "Search name, id, owner, script  ( / )", "aria-label": "Search jobs", value: address.get("text"), oninput: typed });
  const tenants = h("select", { "aria-label": "Tenant", onchange: () => address.set({ tenant: tenants.value, page: "0" }) });
  const chips = h("div", { class: "chips", role: "group", "aria-label": "States" });
  const table = makeTable({
    name, label: title, columns, keyOf: (job) => job.id, walk: true,
    sorting: () => ({ by: address.get("sort"), descending: address.get("descending") === "true" }),
    onSort: sortBy, selectable: Boolean(bulk), onSelect: selected,
  });
  const chosen = h("div", { class: "selection", hidden: true });
  const body = h("div", null, tableSkeleton());
  const pages = h("div", { class: "pages" });
  const range = h("span");
  put(
    main,
    h("div", { class: "head" }, h("div", null, h("h1", null, title), said), h("div", { class: "actions" }, search, tenants)),
    h("div", { class: "bar" }, chips),
    h("section", { class: "panel" }, h("header", null, chosen, range, h("div", { class: "actions" }, csvButton(table))), body, h("footer", null, pages)),
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
    const jobs = (found?.jobs ?? []).filter((job) => ids.includes(job.id));
    const after = () => (table.clear(), refresh());
    chosen.hidden = !ids.length;
    put(chosen, h("b", null, `${ids.length} selected`), bulk(jobs, after), h("button", { type: "button", class: "small plain", onclick: table.clear }, "Clear"));
    range.hidden = ids.length > 0;
  }

  async function load() {
    const { page, ...filter } = address.all();
    const offset = Math.max(0, Number(page) || 0) * LIMIT;
    const path = at("/api/table", { ...filter, state: filter.state || states, offset, limit: LIMIT });
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
    const { state, tenant, text } = address.all();
    if (state || tenant || text) {
      const clear = h("button", { type: "button", onclick: () => ((search.value = ""), address.set(DEFAULTS)) }, "Clear the filters");
      return empty("No job fits these filters", "", clear);
    }
    return none();
  }

  function fillChips(counts) {
    const shown = states === "ended" ? ENDED : STATES;
    const chosen = new Set(address.get("state").split(",").filter(Boolean));
    const toggle = (one) => {
      chosen.has(one) ? chosen.delete(one) : chosen.add(one);
      address.set({ state: STATES.filter((name) => chosen.has(name)).join(","), page: "0" });
    };
    keyed(chips, shown, (one) => one, (one) => h("button", { type: "button", class: "chip", "data-filter": one, onclick: () => chips.toggle(one) }, one, h("b")), (chip, one) => {
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
