// What a page is set to (filters, sorting, range) lives in its address: a link shows a colleague the same.

// `defaults` are left out of the address; values are text. `changed` runs after each change, by the reader or by "back".
export function addressState(defaults, changed = () => {}) {
  const state = { ...defaults };
  const read = () => {
    const query = new URLSearchParams(location.search);
    for (const name of Object.keys(defaults)) state[name] = query.get(name) ?? defaults[name];
  };
  read();
  addEventListener("popstate", () => {
    read();
    changed();
  });
  return {
    ...accessors(state),
    // `isStep`: worth a step of "back"; typing in a search field is not.
    set(values, { isStep = true } = {}) {
      Object.assign(state, values);
      const query = new URLSearchParams(location.search);
      for (const [name, value] of Object.entries(state)) {
        if (String(value) === String(defaults[name])) query.delete(name);
        else query.set(name, value);
      }
      const address = query.size ? `?${query}` : location.pathname;
      if (isStep) history.pushState(null, "", address);
      else history.replaceState(null, "", address);
      changed();
    },
  };
}

function accessors(state) {
  return { get: (name) => state[name], all: () => ({ ...state }) };
}

// The JSON that the page is made of, with the same filters.
export function setTwin(path) {
  const link = document.getElementById("twin");
  if (link && link.getAttribute("href") !== path) link.setAttribute("href", path);
}
