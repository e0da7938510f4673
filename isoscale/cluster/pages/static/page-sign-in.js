// Signing in: with a token, or by a link that works once. A session that is there already is simply used.
import { get, post } from "./api.js";
import { h, put } from "./dom.js";
import { command, problem } from "./notice.js";

export async function show(main) {
  const code = location.hash.slice(1);
  // Out of the address before anything else: it must not stay in the history.
  if (code) history.replaceState(null, "", location.pathname + location.search);
  const said = h("div", { role: "alert" });
  if (code) {
    try {
      await post("/login", { code });
      return leave();
    } catch (error) {
      put(said, problem(error));
    }
  } else if ((await get("/session").catch(() => null))?.signed_in) {
    return leave();
  }
  const field = h("input", {
    id: "token", name: "token", type: "password", autocomplete: "current-password", placeholder: "isc_…", required: true, spellcheck: "false",
  });
  const form = h(
    "form",
    { onsubmit: submit },
    h("label", { class: "field", for: "token" }, "Token"),
    field,
    h("button", { class: "primary", type: "submit" }, "Sign in"),
  );
  async function submit(event) {
    event.preventDefault();
    try {
      await post("/login", { token: field.value.trim() });
      leave();
    } catch (error) {
      put(said, problem(error));
      field.select();
    }
  }
  const brand = h("div", { class: "brand" }, h("img", { src: `${document.body.dataset.assets}favicon.svg`, width: 24, height: 24, alt: "" }), "isoscale");
  const how = h(
    "div",
    { class: "soft" },
    h("p", null, "Whoever started the service has the token in its state directory, or gets a link that works once:"),
  );
  put(main, h("div", { class: "sign-in" }, brand, h("h1", null, "Sign in"), said, form, how, command("isoscale dashboard cluster")));
  document.body.dataset.ready = "yes";
  field.focus();
}

// Only to a page of this service, whatever the address says.
function leave() {
  const wanted = new URL(new URLSearchParams(location.search).get("next") ?? "/", location.origin);
  location.replace(wanted.origin === location.origin ? wanted.pathname + wanted.search : "/");
}
