// Elements from values. Text is text: nothing here, and nothing that uses it, makes markup from a string.

const SVG = "http://www.w3.org/2000/svg";

export function h(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

// Only what changed is touched: a selection, a hover and a reader's place stay.
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

// Children of `parent` by key, in the order of `items`: made once, then updated in place.
export function keyed(parent, items, keyOf, make, update) {
  const known = (parent.keyed ??= new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, element] of known) {
    if (!wanted.has(key)) {
      element.remove();
      known.delete(key);
    }
  }
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = known.get(key);
    if (!element) known.set(key, (element = make(item)));
    update?.(element, item);
    if (element === next) next = next.nextElementSibling;
    else parent.insertBefore(element, next);
  }
}

const ICONS = {
  queued: ["M8 4.5V8l2.2 1.6", "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Z"],
  starting: ["M8 2a6 6 0 1 1-6 6"],
  running: ["M5 3.2v9.6L12.5 8Z"],
  resizing: ["M2.5 8h11", "M5 5 2 8l3 3", "m11 5 3 3-3 3"],
  pausing: ["M5.5 3.5v9", "M10.5 3.5v9"],
  paused: ["M5.5 3.5v9", "M10.5 3.5v9"],
  finished: ["m3 8.5 3.2 3.2L13 5"],
  failed: ["M4 4l8 8", "M12 4l-8 8"],
  cancelled: ["M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Z", "M3.8 3.8l8.4 8.4"],
  sun: ["M8 5.2a2.8 2.8 0 1 0 0 5.6 2.8 2.8 0 0 0 0-5.6Z", "M8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M12.6 3.4l-.7.7M4.1 11.9l-.7.7"],
  moon: ["M13 9.6A5.6 5.6 0 0 1 6.4 3a5.6 5.6 0 1 0 6.6 6.6Z"],
  auto: ["M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2Z", "M8 2v12", "M10 4.2v7.6M12 5.6v4.8"],
  person: ["M8 2.5a2.6 2.6 0 1 0 0 5.2 2.6 2.6 0 0 0 0-5.2Z", "M3 13.5c.6-2.4 2.6-3.6 5-3.6s4.400 1.200 5 3.600"],
};

export function icon(name) {
  const paths = (ICONS[name] ?? []).map((d) => svg("path", { d }));
  return svg("svg", { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" }, paths);
}
