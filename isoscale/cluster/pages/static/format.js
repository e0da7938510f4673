// Numbers and times for people: short, in the reader's zone; the exact value is in the title.
import { h, setText } from "./dom.js";

// Seconds that the service's clock is ahead of this one.
let ahead = 0;

export function setClock(now_s) {
  ahead = now_s - Date.now() / 1000;
}

export const now = () => Date.now() / 1000 + ahead;

export const NONE = "–";
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  return isNumber(value) ? value.toLocaleString("en-US") : NONE;
}

// Four significant digits, never 0.000.
export function figure(value) {
  if (!isNumber(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

export const percent = (value) => (isNumber(value) ? `${Math.round(value * 100)} %` : NONE);

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < 4) [value, unit] = [value / 1000, unit + 1];
  return `${unit ? value.toPrecision(3) : value} ${units[unit]}`;
}

// 0.017 s, 12 s, 3 min 20 s, 2 h 5 min, 3 d 4 h
export function seconds(value) {
  if (!isNumber(value)) return NONE;
  const sign = value < 0 ? "-" : "";
  const s = Math.abs(value);
  if (s < 1) return `${sign}${s < 0.001 && s > 0 ? "<1" : Math.round(s * 1000)} ms`;
  if (s < 10) return `${sign}${s.toFixed(1)} s`;
  if (s < 60) return `${sign}${Math.round(s)} s`;
  const pairs = [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]];
  for (const [large, name, small, then] of pairs) {
    if (s < large) continue;
    const rest = Math.floor((s % large) / small);
    return `${sign}${Math.floor(s / large)} ${name}${rest ? ` ${rest} ${then}` : ""}`;
  }
}

function relative(t) {
  const apart = t - now();
  const size = Math.abs(apart);
  if (size < 5) return "now";
  const words = size < 60 ? `${Math.round(size)} s` : seconds(size).split(" ").slice(0, 2).join(" ");
  return apart < 0 ? `${words} ago` : `in ${words}`;
}

const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

export const absolute = (t) => (isNumber(t) ? `${FULL.format(t * 1000)} · ${iso(t)}` : "");
export const iso = (t) => (isNumber(t) ? new Date(t * 1000).toISOString() : "");

export function clock(t) {
  if (!isNumber(t)) return NONE;
  const time = CLOCK.format(t * 1000);
  return Math.abs(t - now()) > 20 * 3600 ? `${DAY.format(t * 1000)} ${time}` : time;
}

// A moment that ages by itself. `kind`: "relative" or "clock".
export function when(t, kind = "relative") {
  if (!isNumber(t)) return h("span", { class: "quiet" }, NONE);
  const text = kind === "clock" ? clock(t) : relative(t);
  return h("time", { datetime: iso(t), title: absolute(t), "data-s": t, "data-kind": kind }, text);
}

setInterval(() => {
  for (const one of document.querySelectorAll('time[data-kind="relative"]')) setText(one, relative(Number(one.dataset.s)));
}, 5000);

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
