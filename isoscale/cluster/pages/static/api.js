// Calls of the service, as this page. A refusal is an ApiError that says what to do; nobody there is one, too.

export class ApiError extends Error {
  constructor(status, text, { remedy = "", field = "" } = {}) {
    super(text);
    Object.assign(this, { status, remedy, field });
  }

  get isGone() {
    return this.status === 0;
  }
}

export const get = (path, options) => ask("GET", path, undefined, options);
export const post = (path, body) => ask("POST", path, body);
export const put = (path, body) => ask("PUT", path, body);
export const remove = (path) => ask("DELETE", path);

async function ask(method, path, body, { signal } = {}) {
  const headers = { accept: "application/json" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "the service does not answer");
  }
  const found = await response.json().catch(() => null);
  if (response.ok) return found;
  if (response.status === 401 && path !== "/login") toSignIn();
  const told = found?.error ?? {};
  throw new ApiError(response.status, told.text ?? `HTTP ${response.status}`, told);
}

// A path with a query; what is empty is left out.
export function at(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `${path}?${new URLSearchParams(given)}` : path;
}

export function toSignIn() {
  if (document.body.dataset.page === "sign-in") return;
  location.replace(at("/sign-in", { next: location.pathname + location.search }));
}
