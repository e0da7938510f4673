// A row of numbers that keeps its shape while they change.
import { h, setText } from "./dom.js";
import { NONE } from "./format.js";

export function stats(names) {
  const shown = new Map();
  const boxes = names.map((name) => {
    const value = h("dd", null, NONE);
    const sub = h("div", { class: "sub" });
    shown.set(name, { value, sub });
    return h("div", { class: "stat", "data-stat": name }, h("dl", null, h("dt", null, name), value), sub);
  });
  return {
    element: h("div", { class: "stats" }, boxes),
    set(name, value, sub = "") {
      setText(shown.get(name).value, value);
      setText(shown.get(name).sub, sub);
    },
  };
}
