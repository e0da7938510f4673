// The keyboard: / searches, j and k walk through rows, ? tells about it, g and a letter goes to a page.
import { h } from "./dom.js";
import { show } from "./notice.js";

const keys = new Map();
let afterG = false;

export function onKey(key, words, act) {
  keys.set(key, { words, act });
}

export function startKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const target = event.target;
    if (target.matches("input, select, textarea")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (afterG) {
      afterG = false;
      const link = document.querySelector(`.nav a[data-key="${CSS.escape(event.key)}"]`);
      if (link) location.assign(link.href);
      return;
    }
    if (event.key === "g") {
      afterG = true;
      setTimeout(() => (afterG = false), 1500);
      return;
    }
    const found = keys.get(event.key);
    if (!found) return;
    event.preventDefault();
    found.act(event);
  });
  onKey("?", "show these keys", help);
  onKey("/", "search on this page", () => document.querySelector("[data-search]")?.focus());
  onKey("j", "next row", () => step(1));
  onKey("k", "previous row", () => step(-1));
  onKey("Enter", "open the row", () => document.querySelector("tr.at a")?.click());
  onKey("x", "select the row", () => document.querySelector('tr.at input[type="checkbox"]')?.click());
  document.getElementById("help")?.addEventListener("click", help);
}

function step(by) {
  const rows = [...document.querySelectorAll("table[data-walk] tbody tr[data-id]")];
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("at"));
  const to = at < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.max(0, Math.min(rows.length - 1, at + by));
  rows[at]?.classList.remove("at");
  rows[to].classList.add("at");
  rows[to].scrollIntoView({ block: "nearest" });
  (rows[to].querySelector("a") ?? rows[to]).focus({ preventScroll: true });
}

function help() {
  const rows = [...keys].map(([key, { words }]) => [h("div", null, h("kbd", null, key)), h("div", null, words)]);
  const pages = [...document.querySelectorAll(".nav a[data-key]")].map((link) => [
    h("div", null, h("kbd", null, "g"), " ", h("kbd", null, link.dataset.key)),
    h("div", null, `go to ${link.textContent}`),
  ]);
  const close = h("button", { type: "button", onclick: () => dialog.close() }, "Close");
  const dialog = h(
    "dialog",
    { "aria-labelledby": "help-title" },
    h("div", { class: "inside" }, h("h2", { id: "help-title" }, "Keys"), h("div", { class: "keys" }, rows, pages), h("footer", null, close)),
  );
  dialog.addEventListener("close", () => dialog.remove());
  show(dialog);
}
