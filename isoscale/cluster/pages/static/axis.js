// The times below a drawing: round ones, few enough for its width, none that its right edge would cut.
import { h } from "./dom.js";
import { clock } from "./format.js";

const STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800];
const LABEL_PX = 64;

// Spans for `total` seconds from `start`, to be put into an element of class "axis" that is about `width` pixels wide.
export function ticks(start, total, width) {
  const most = Math.max(2, Math.min(8, Math.floor(width / (1.5 * LABEL_PX))));
  const step = STEPS.find((one) => total / one <= most) ?? total / most;
  const found = [];
  for (let t = 0; t < total * (1 - LABEL_PX / width); t += step) {
    const tick = h("span", null, clock(start + t));
    tick.style.left = `${(100 * t) / total}%`;
    found.push(tick);
  }
  return found;
}
