// What a reader is told beside the page: a line on top, a note in the corner, a question in a dialog, the keys.
import { ApiError } from "./api.js";
import { h, put } from "./dom.js";

const TOAST_MS = 6000;

export function notice(text, { tone = "hold", action = null, forMs = 0 } = {}) {
  const line = document.getElementById("notice");
  line.hidden = !text;
  line.dataset.tone = tone;
  put(line, text && h("span", null, text), action);
  if (forMs) setTimeout(() => line.textContent === text && notice(""), forMs);
}

export function toast(text, tone = "good") {
  const one = h("div", { class: "toast", "data-tone": tone }, text);
  document.getElementById("toasts").append(one);
  setTimeout(() => one.remove(), TOAST_MS);
}

// Does `work`; a refusal is told, not thrown.
export async function attempt(work, done = "") {
  try {
    const found = await work();
    if (done) toast(done);
    return found ?? true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    toast([error.message, error.remedy && !error.message.includes(error.remedy) ? error.remedy : ""].filter(Boolean).join(": "), "bad");
    return null;
  }
}

// Resolves to the form's values, or to null if the reader changed their mind.
export function question({ title, text, fields = [], confirm, danger = false }) {
  return new Promise((resolve) => {
    const named = "dialog-title";
    const dialog = h(
      "dialog",
      { "aria-labelledby": named },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: named }, title),
        text && h("p", { class: "soft" }, text),
        fields.map(({ label, ...props }) => h("label", { class: "field" }, label, h("input", props))),
        h(
          "footer",
          null,
          h("button", { type: "button", onclick: () => dialog.close() }, "Keep it as it is"),
          h("button", { class: `primary${danger ? " danger" : ""}`, value: "yes", "data-confirm": true }, confirm),
        ),
      ),
    );
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? Object.fromEntries(new FormData(dialog.querySelector("form"))) : null);
      dialog.remove();
    });
    show(dialog);
  });
}

export function show(dialog) {
  document.body.append(dialog);
  // A click on what is behind it closes it.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  dialog.showModal();
}

export async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Not over plain HTTP from another machine: the old way.
    const box = h("textarea", { class: "sr", value: text, "aria-label": what });
    document.body.append(box);
    box.select();
    document.execCommand("copy");
    box.remove();
  }
  toast(`${what} copied`);
}

export function command(text) {
  return h(
    "div",
    { class: "command" },
    h("code", { tabindex: "0" }, text),
    h("button", { type: "button", "aria-label": `Copy: ${text}`, onclick: () => copy(text, "Command") }, "Copy"),
  );
}

// An empty state says what to do next.
export function empty(title, text, then = null) {
  return h("div", { class: "empty" }, h("strong", null, title), text && h("p", null, text), then);
}

export function problem(error) {
  return h("div", { class: "problem", role: "alert" }, error.message, error.remedy && h("p", { class: "remedy" }, error.remedy));
}
