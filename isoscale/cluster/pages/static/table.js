// Tables: rows stay in place while they change, columns sort, rows can be selected, all of it can be copied as CSV.
import { h, keyed, put } from "./dom.js";
import { copy } from "./notice.js";

// A column: {id, label, cell(row) -> node or text, text(row) -> text for CSV and for "has it changed", sort, num, class}.
// `sorting`: () -> {by, descending}; `onSort(id)`. `selectable`: a column of boxes; `onSelect(ids)`.
export function makeTable({ name, label, columns, keyOf, sorting, onSort, selectable = false, onSelect = () => {}, walk = false }) {
  const chosen = new Set();
  let rows = [];
  const body = h("tbody");
  const all = selectable && h("input", { type: "checkbox", "aria-label": "Select all on this page", onchange: chooseAll });
  const heads = columns.map((column) => {
    const head = h("th", { scope: "col", class: column.num ? "num" : "" });
    const act = column.sort && onSort ? h("button", { type: "button", onclick: () => onSort(column.sort) }, column.label) : column.label;
    head.append(act || h("span", { class: "sr" }, column.id));
    return head;
  });
  const table = h(
    "table",
    { "data-table": name, "aria-label": label, "data-walk": walk },
    h("thead", null, h("tr", null, selectable && h("th", { scope: "col", class: "box" }, all), heads)),
    body,
  );

  function chooseAll() {
    for (const row of rows) all.checked ? chosen.add(keyOf(row)) : chosen.delete(keyOf(row));
    update(rows);
    onSelect([...chosen]);
  }

  function make(row) {
    const key = keyOf(row);
    const box = selectable && h("input", {
      type: "checkbox",
      "aria-label": `Select ${key}`,
      onchange: (event) => {
        event.target.checked ? chosen.add(key) : chosen.delete(key);
        onSelect([...chosen]);
      },
    });
    const cells = columns.map((column) => h("td", { class: [column.num && "num", column.class].filter(Boolean).join(" ") }));
    const line = h("tr", { "data-id": key }, selectable && h("td", { class: "box" }, box), cells);
    Object.assign(line, { box, filled: cells, shown: [] });
    return line;
  }

  function fill(line, row) {
    if (line.box) line.box.checked = chosen.has(keyOf(row));
    columns.forEach((column, index) => {
      const text = String(column.text(row) ?? "");
      if (line.shown[index] === text) return;
      line.shown[index] = text;
      put(line.filled[index], column.cell ? column.cell(row) : text);
    });
  }

  function update(found) {
    rows = found;
    const present = new Set(rows.map(keyOf));
    for (const key of chosen) if (!present.has(key)) chosen.delete(key);
    keyed(body, rows, keyOf, make, fill);
    const { by, descending } = sorting?.() ?? {};
    columns.forEach((column, index) => {
      if (column.sort && column.sort === by) heads[index].setAttribute("aria-sort", descending ? "descending" : "ascending");
      else heads[index].removeAttribute("aria-sort");
    });
    if (all) all.checked = rows.length > 0 && chosen.size === rows.length;
  }

  function csv() {
    const lines = [columns.map((column) => column.label || column.id), ...rows.map((row) => columns.map((column) => column.text(row)))];
    return lines.map((line) => line.map(csvCell).join(",")).join("\r\n") + "\r\n";
  }

  return { element: h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table), update, csv, selected: () => [...chosen], clear: () => (chosen.clear(), update(rows), onSelect([])) };
}

// A spreadsheet would run what begins like a formula.
export function csvCell(value) {
  let text = String(value ?? "");
  if (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) text = `'${text}`;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

export function csvButton(table) {
  return h("button", { type: "button", class: "small", "data-csv": true, title: "Copy this table as CSV", onclick: () => copy(table.csv(), "Table as CSV") }, "Copy CSV");
}

// Lines that breathe until the first rows come.
export function tableSkeleton(lines = 6) {
  return h("div", { class: "body", "aria-hidden": "true" }, Array.from({ length: lines }, () => h("span", { class: "skeleton row" })));
}
