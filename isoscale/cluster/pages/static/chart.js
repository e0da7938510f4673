// Lines over steps or time by uPlot: extremes as a band, so a spike of one step in a million is seen; marks for what
// happened. Colours come from the page's theme.
import { h, put, setText } from "./dom.js";
import { NONE, clock, count, figure } from "./format.js";

let library = null;

function load() {
  library ??= new Promise((resolve, reject) => {
    const script = h("script", { src: `${document.body.dataset.assets}uPlot.iife.min.js`, onload: () => resolve(window.uPlot), onerror: () => reject(new Error("the chart library did not load")) });
    document.head.append(script);
  });
  return library;
}

const probe = document.createElement("span");
probe.hidden = true;
document.documentElement.append(probe);

// A token's colour as a canvas knows it, with an alpha.
export function colour(token, alpha = 1) {
  probe.style.color = `var(--${token})`;
  const numbers = getComputedStyle(probe).color.match(/[\d.]+/g) ?? ["0", "0", "0"];
  return `rgba(${numbers.slice(0, 3).join(",")},${alpha})`;
}

// {name, title, x: "step" | "time", format, tone, step: it holds until the next point, log, min, max, marks, sync, onZoom}
export function makeChart({ name, title, x = "step", format = figure, tone = "hue-0", step = false, min = null, sync = "", onZoom = null, large = false, unit = "" }) {
  const nowShown = h("span", { class: "now" }, NONE);
  const none = h("div", { class: "none" }, "waiting for the first value");
  const plot = h("div", { class: `plot${large ? " large" : ""}`, role: "img", "aria-label": title }, none);
  const element = h("figure", { class: "panel chart", "data-chart": name }, h("figcaption", null, h("h2", null, title), unit && h("span", { class: "small quiet" }, unit), nowShown), plot);
  const tip = h("div", { class: "tip", hidden: true });
  let drawn = null;
  let data = null;
  let marks = [];
  let isLog = false;
  const sayX = (value) => (x === "time" ? clock(value) : `step ${count(Math.round(value))}`);

  async function draw() {
    const uPlot = await load();
    drawn?.destroy();
    const axis = { stroke: colour("ink-3"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const line = { stroke: colour(tone), width: 1.5, spanGaps: data.length > 4, points: { show: data[0].length < 2 }, paths: step ? uPlot.paths.stepped({ align: 1 }) : undefined };
    const edge = { stroke: "transparent", width: 0, points: { show: false }, paths: line.paths };
    const options = {
      width: Math.max(120, plot.clientWidth - 16),
      height: plot.clientHeight - 12,
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: Boolean(onZoom), y: false, setScale: false }, sync: sync ? { key: sync } : undefined },
      scales: { x: { time: x === "time" }, y: { distr: isLog ? 3 : 1, range: isLog ? undefined : (u, low, high) => range(low, high, min) } },
      series: [{}, line, edge, edge, ...(data.length > 4 ? [{ stroke: colour("hue-1"), width: 1.5, dash: [5, 4], spanGaps: true, points: { show: false } }] : [])],
      bands: [{ series: [3, 2], fill: colour(tone, 0.18) }],
      axes: [
        { ...axis, size: 28, space: 64, values: x === "time" ? undefined : (u, ticks) => ticks.map(short) },
        { ...axis, size: 52, space: 32, values: (u, ticks) => ticks.map((value) => (value === null ? "" : format(value))) },
      ],
      hooks: {
        draw: [drawMarks],
        setCursor: [showTip],
        setSelect: [(u) => onZoom && u.select.width > 4 && onZoom(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"))],
      },
    };
    if (x === "time") options.axes[0].values = (u, ticks) => ticks.map((t, i) => (i % 1 ? "" : timeTick(t, ticks)));
    put(plot);
    drawn = new uPlot(options, data, plot);
    plot.append(tip);
    if (onZoom) drawn.over.addEventListener("dblclick", () => onZoom(null, null));
  }

  // Points {x, value, low, high}, and the last value if it is not the last point's.
  // `also`: a second line, dashed, with an x of its own.
  function update(points, { last = points?.value.at(-1), said = null, marked = marks, also = null } = {}) {
    setText(nowShown, said ?? (last === undefined || last === null ? NONE : format(last)));
    marks = marked;
    if (!points?.x.length) return;
    none.remove();
    const before = data?.length;
    data = [points.x, points.value, points.low ?? points.value, points.high ?? points.value];
    if (also) data = joined(data, also);
    plot.setAttribute("aria-label", `${title}: ${points.x.length} points, last ${format(last)}, lowest ${format(least(data[2]))}, highest ${format(most(data[3]))}`);
    if (drawn && before === data.length) drawn.setData(data);
    else draw();
  }

  function drawMarks(u) {
    const { ctx, bbox } = u;
    ctx.save();
    for (const mark of marks) {
      if (mark.x < u.scales.x.min || mark.x > u.scales.x.max) continue;
      const left = Math.round(u.valToPos(mark.x, "x", true)) + 0.5;
      ctx.strokeStyle = colour(mark.tone ?? "ink-3", 0.7);
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash(mark.dash ? [3, 3] : []);
      ctx.beginPath();
      ctx.moveTo(left, bbox.top);
      ctx.lineTo(left, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }

  function showTip(u) {
    const { left, idx } = u.cursor;
    tip.hidden = left < 0 || idx === null || idx === undefined;
    if (tip.hidden) return;
    const [xs, value, low, high] = u.data;
    const spread = high[idx] !== low[idx] && value[idx] !== null ? ` (${format(low[idx])} to ${format(high[idx])})` : "";
    const other = u.data[4]?.[idx] ?? null;
    const near = marks.filter((mark) => Math.abs(u.valToPos(mark.x, "x") - left) < 5).map((mark) => h("div", { class: "soft" }, mark.text));
    put(tip, h("b", null, format(value[idx])), other !== null && ` / ${format(other)}`, spread, h("span", { class: "quiet" }, ` ${sayX(xs[idx])}`), near);
    const offset = u.over.offsetLeft + left;
    tip.style.left = `${offset > plot.clientWidth / 2 ? offset - tip.offsetWidth - 4 : offset + 20}px`;
  }

  const redraw = () => data && draw();
  addEventListener("theme", redraw);
  let width = 0;
  new ResizeObserver(() => {
    if (plot.clientWidth === width) return;
    width = plot.clientWidth;
    drawn?.setSize({ width: Math.max(120, width - 16), height: plot.clientHeight - 12 });
  }).observe(plot);
  const destroy = () => {
    removeEventListener("theme", redraw);
    drawn?.destroy();
    element.remove();
  };
  return { element, update, destroy, setLog: (value) => ((isLog = value), redraw()) };
}

// Two lines with their own x on one: where one has no value it has none.
function joined([x, ...lines], also) {
  const all = [...new Set([...x, ...also.x])].sort((a, b) => a - b);
  const place = new Map(all.map((value, index) => [value, index]));
  const spread = (xs, values) => {
    const found = new Array(all.length).fill(null);
    xs.forEach((value, index) => (found[place.get(value)] = values[index]));
    return found;
  };
  return [all, ...lines.map((values) => spread(x, values)), spread(also.x, also.value)];
}

function range(low, high, least) {
  if (low === null || low === undefined) return [0, 1];
  const space = high - low || Math.abs(high) || 1;
  return [least !== null && low >= least ? least : low - space * 0.08, high + space * 0.08];
}

const finite = (values) => values.filter((value) => Number.isFinite(value));
const least = (values) => finite(values).reduce((a, b) => Math.min(a, b), Infinity);
const most = (values) => finite(values).reduce((a, b) => Math.max(a, b), -Infinity);
const short = (value) => (value >= 1e6 ? `${value / 1e6}M` : value >= 1e4 ? `${value / 1e3}k` : count(value));

function timeTick(t, ticks) {
  const apart = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
  const at = new Date(t * 1000);
  if (apart >= 86400) return at.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  return at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: apart < 60 ? "2-digit" : undefined, hour12: false });
}
