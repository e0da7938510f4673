// Every page begins here: who is there, then the page's own module, then the stream of events.
import { get, post, toSignIn } from "./api.js";
import { h, icon, put, setText } from "./dom.js";
import { setClock } from "./format.js";
import { onKey, startKeys } from "./keys.js";
import { start } from "./live.js";
import { notice, problem } from "./notice.js";

const THEMES = ["auto", "light", "dark"];
const main = document.getElementById("main");
const name = document.body.dataset.page;

await begin();

async function begin() {
  const page = import(`./page-${name}.js`);
  if (name === "sign-in") return (await page).show(main);
  startKeys();
  theme();
  let session;
  try {
    session = await get("/session");
  } catch (error) {
    notice(`${error.message}: reload the page when it is back`);
    return;
  }
  if (!session.signed_in) return toSignIn();
  const info = session.info;
  setClock(info.now_s);
  who(info);
  // Before the page asks for anything: what happens meanwhile is told afterwards.
  start(info);
  try {
    await (await page).show(main, info);
  } catch (error) {
    put(main, problem(error));
    document.body.dataset.ready = "yes";
    if (error.status === undefined) throw error;
  }
}

function who(info) {
  const leave = async () => {
    await post("/logout").catch(() => null);
    location.assign("/sign-in");
  };
  put(
    document.getElementById("who"),
    h(
      "details",
      { class: "who" },
      h("summary", { "aria-label": `Signed in as ${info.you}` }, icon("person"), h("span", null, info.role)),
      h(
        "div",
        { class: "menu" },
        h("div", null, h("strong", null, info.you.replace(/-session$/, "")), h("div", { class: "small quiet" }, `${info.role}, ${info.tenant ? `tenant ${info.tenant}` : "every tenant"}`)),
        h("button", { type: "button", onclick: leave }, "Sign out"),
      ),
    ),
  );
  const line = info.policy ? `isoscale ${info.version} · policy ${info.policy}` : `isoscale ${info.version}`;
  setText(document.getElementById("service-line"), line);
}

function theme() {
  const button = document.getElementById("theme");
  const root = document.documentElement;
  const shown = () => {
    const chosen = root.dataset.theme ?? "auto";
    put(button, icon({ auto: "auto", light: "sun", dark: "moon" }[chosen]));
    button.title = `Theme: ${chosen === "auto" ? "as the system" : chosen}`;
    button.setAttribute("aria-label", button.title);
  };
  const next = () => {
    const chosen = THEMES[(THEMES.indexOf(root.dataset.theme ?? "auto") + 1) % 3];
    if (chosen === "auto") delete root.dataset.theme;
    else root.dataset.theme = chosen;
    try {
      if (chosen === "auto") localStorage.removeItem("isoscale-theme");
      else localStorage.setItem("isoscale-theme", chosen);
    } catch {
      // Not kept then.
    }
    shown();
    dispatchEvent(new Event("theme"));
  };
  button.addEventListener("click", next);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => dispatchEvent(new Event("theme")));
  onKey("t", "change the theme", next);
  shown();
}
