// What happened to a job: what the service did and who asked for it, and what the run itself wrote down.
import { at, get } from "./api.js";
import { h, put } from "./dom.js";
import { iso, when } from "./format.js";
import { attempt, empty } from "./notice.js";
import { csvButton, makeTable, tableSkeleton } from "./table.js";
import { visible } from "./visible.js";

const LIMIT = 200;

const COLUMNS = [
  { id: "when", label: "When", cell: (row) => when(row.t, "clock"), text: (row) => iso(row.t), class: "nowrap mono" },
  { id: "source", label: "From", text: (row) => row.source },
  { id: "event", label: "Event", cell: (row) => h("span", { class: "name" }, row.event.replaceAll("_", " ")), text: (row) => row.event, class: "nowrap" },
  { id: "by", label: "By", text: (row) => row.by },
  { id: "fields", label: "Details", cell: (row) => h("span", { class: "clip mono small", title: row.words }, row.words), text: (row) => row.words, class: "widest" },
];

export function events(base, alone) {
  let older = null;
  let run = [];
  let newest = null;
  const table = makeTable({ name: "events", label: "Events", columns: COLUMNS, keyOf: (row) => row.key, walk: true });
  const body = h("div", null, tableSkeleton());
  let needle = "";
  let audits = false;
  const search = h("input", { type: "search", "data-search": true, placeholder: "Filter events  ( / )", "aria-label": "Filter events", oninput: () => ((needle = search.value.trim().toLowerCase()), attempt(draw)) });
  const chip = h("button", { type: "button", class: "chip", "aria-pressed": "false", onclick: () => (chip.setAttribute("aria-pressed", String((audits = !audits))), attempt(draw)) }, "Audits");
  const more = h("button", { type: "button", class: "small", onclick: () => attempt(back) }, "Older");
  const footer = h("footer", null, more);
  const element = h("section", { class: "panel" }, h("header", null, h("h2", null, "Events"), h("span", { class: "small quiet" }, "newest first"), h("div", { class: "actions" }, chip, search, csvButton(table))), body, footer);

  const take = (page) => page.events.map((one) => ({ ...one, key: `r${one.at}`, source: "run", by: "" }));

  async function refresh() {
    const page = await get(at(`${base}/run-events`, newest === null ? { limit: LIMIT } : { after: newest, limit: LIMIT }));
    if (newest === null) older = page.older;
    newest = page.newer;
    run = run.concat(take(page));
    await draw();
  }

  async function back() {
    if (older === null) return;
    const page = await get(at(`${base}/run-events`, { before: older, limit: LIMIT }));
    older = page.older;
    run = take(page).concat(run);
    await draw();
  }

  async function draw() {
    const service = alone ? [] : await get(at(`${base}/events`, { limit: 1000 }));
    const rows = [...service.map((one) => ({ ...one, key: `s${one.id}`, source: "service" })), ...run]
      .sort((a, b) => b.t - a.t)
      .map((row) => ({ ...row, words: words(row.fields) }))
      .filter((row) => (audits || row.event !== "audit") && (!needle || `${row.event} ${row.by} ${row.words}`.toLowerCase().includes(needle)));
    footer.hidden = older === null;
    if (!rows.length) return put(body, needle ? empty("No event fits", "") : empty("Nothing happened yet", "Events appear when the policy first looks at the job."));
    if (body.firstChild !== table.element) put(body, table.element);
    table.update(rows);
  }

  return { element, refresh };
}

// Fields as name=value; texts of strangers as they are, made visible.
function words(fields) {
  return visible(
    Object.entries(fields)
      .filter(([, value]) => value !== "" && value !== null && !(Array.isArray(value) && !value.length))
      .map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`)
      .join("  "),
  );
}

