// Settings: the policy, quotas, tokens, and a link for another browser. What the reader may not change is shown only.
import { setTwin } from "./address.js";
import { get, post, put as write, remove } from "./api.js";
import { h, put, setText } from "./dom.js";
import { count, iso, now, plural, seconds, when } from "./format.js";
import { keepFresh } from "./live.js";
import { attempt, command, empty, question, show as open } from "./notice.js";
import { csvButton, makeTable } from "./table.js";

const ROLES = ["viewer", "user", "operator", "admin"];
const DAY_S = 86_400;

export function show(main, info) {
  const isAdmin = info.role === "admin";
  setTwin("/api/settings");
  const facts = h("dl", { class: "facts" });
  const policy = h("div", { class: "stack" });
  const quotas = h("div", { class: "stack" });
  const columns = [
    { id: "name", label: "Name", cell: (token) => h("span", { class: "name" }, token.name), text: (token) => token.name },
    { id: "role", label: "Role", text: (token) => token.role },
    { id: "tenant", label: "Tenant", text: (token) => token.tenant || "every" },
    { id: "created", label: "Made", cell: (token) => when(token.created_s), text: (token) => iso(token.created_s), class: "nowrap" },
    { id: "expires", label: "Expires", cell: (token) => (token.expires_s ? when(token.expires_s) : "never"), text: (token) => iso(token.expires_s) || "never", class: "nowrap" },
    { id: "act", label: "", cell: (token) => h("button", { type: "button", class: "small danger", "data-action": "revoke", onclick: () => revoke(token) }, "Revoke"), text: () => "" },
  ];
  const table = makeTable({ name: "tokens", label: "Tokens", columns, keyOf: (token) => String(token.id) });
  let sessionsShown = false;
  const which = h("button", { type: "button", class: "small", onclick: () => ((sessionsShown = !sessionsShown), fresh()) });
  const make = h("button", { type: "button", class: "small", "data-action": "make-token", onclick: makeToken }, "New token");
  const panel = (title, content, ...tools) => h("section", { class: "panel" }, h("header", null, h("h2", null, title), h("div", { class: "actions" }, tools)), content);
  put(
    main,
    h("div", { class: "head" }, h("h1", null, "Settings")),
    h("div", { class: "columns" }, panel("Policy", h("div", { class: "body" }, policy)), panel("Quotas", h("div", { class: "body" }, quotas))),
    h("div", { class: "columns" }, panel("Service", h("div", { class: "body" }, facts)), panel("Another browser", h("div", { class: "body stack tight" }, h("p", { class: "soft" }, "A link that signs in once, as you, within ten minutes."), h("div", null, h("button", { type: "button", "data-action": "make-link", onclick: makeLink }, "Make a link"))))),
    isAdmin && panel("Tokens", table.element, which, make, csvButton(table)),
  );

  async function refresh() {
    const found = await get("/api/settings");
    fillFacts(found);
    fillPolicy(found);
    fillQuotas(found);
    if (!isAdmin) return;
    const good = (await get("/api/tokens")).filter((token) => !token.revoked_s && (!token.expires_s || token.expires_s > now()));
    const sessions = good.filter((token) => token.name.endsWith("-session"));
    setText(which, sessionsShown ? "Hide sessions" : `Show ${plural(sessions.length, "session")}`);
    table.update(good.filter((token) => sessionsShown || !sessions.includes(token)).sort((a, b) => b.created_s - a.created_s));
  }

  function fillFacts(found) {
    const rows = [["Version", found.version], ["Devices", found.devices], ["Decides", found.interval_s ? `every ${seconds(found.interval_s)}` : "at every event"], ["Jobs of a tenant", `at most ${count(found.max_waiting)} that are not over`], ["You", `${info.you.replace(/-session$/, "")}, ${info.role}, ${info.tenant ? `tenant ${info.tenant}` : "every tenant"}`]];
    once(facts, rows, () => put(facts, rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])));
  }

  function fillPolicy(found) {
    once(policy, [found.policy], () => {
      const select = h("select", { "aria-label": "Policy", disabled: !isAdmin }, Object.keys(found.policies).map((name) => h("option", { value: name }, name)), !(found.policy in found.policies) && h("option", { value: found.policy }, found.policy));
      select.value = found.policy;
      const text = h("p", { class: "soft" }, found.policies[found.policy.split("(")[0]] ?? "");
      const save = h("button", { type: "button", class: "primary", disabled: true, "data-action": "policy", onclick: () => change("policy", { policy: select.value }, `policy ${select.value}`) }, "Use it");
      select.addEventListener("change", () => {
        text.textContent = found.policies[select.value] ?? "";
        save.disabled = select.value === found.policy;
      });
      put(policy, h("div", { class: "bar" }, select, isAdmin && save), text, h("p", { class: "small quiet" }, "Until the service is started with another --policy. ", h("a", { href: "/what-if" }, "Try one first")));
    });
  }

  function fillQuotas(found) {
    const entries = Object.entries(found.quotas);
    once(quotas, [found.quotas], () => {
      const text = entries.map(([tenant, devices]) => `${tenant}=${devices}`).join(", ");
      const list = entries.length ? h("dl", { class: "facts" }, entries.map(([tenant, devices]) => [h("dt", null, tenant), h("dd", null, `${count(devices)} devices while others wait`)])) : h("p", { class: "soft" }, "No tenant has a quota: the policy alone decides.");
      const edit = h("button", { type: "button", "data-action": "quotas", onclick: () => changeQuotas(text) }, "Change");
      put(quotas, list, isAdmin && h("div", null, edit));
    });
  }

  async function changeQuotas(text) {
    const answer = await question({ title: "Quotas", text: "Devices that a tenant may hold while others wait. Empty: none.", fields: [{ label: "team-a=2, team-b=4", name: "quotas", value: text, size: 40 }], confirm: "Use them" });
    if (!answer) return;
    const pairs = answer.quotas.split(",").map((one) => one.split("=").map((part) => part.trim())).filter(([tenant]) => tenant);
    await change("quotas", { quotas: Object.fromEntries(pairs.map(([tenant, devices]) => [tenant, Number(devices)])) }, "quotas");
  }

  async function change(what, body, done) {
    await attempt(() => write(`/api/settings/${what}`, body), `${done}: in use`);
    fresh();
  }

  async function revoke(token) {
    if (!(await question({ title: `Revoke ${token.name}`, text: "Every client that uses it, and every session that began with it, is signed out at once.", confirm: "Revoke", danger: true }))) return;
    await attempt(() => remove(`/api/tokens/${token.id}`), `${token.name} revoked`);
    fresh();
  }

  async function makeToken() {
    const answer = await question({
      title: "New token",
      fields: [{ label: "Name", name: "name", required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*" }, { label: `Role: ${ROLES.join(", ")}`, name: "role", value: "user", list: "", pattern: ROLES.join("|"), required: true }, { label: "Tenant (empty: every one)", name: "tenant" }, { label: "Days until it expires (empty: never)", name: "days", type: "number", min: "0.01", step: "any" }],
      confirm: "Make it",
    });
    if (!answer) return;
    const expires_s = answer.days ? now() + Number(answer.days) * DAY_S : null;
    const made = await attempt(() => post("/api/tokens", { name: answer.name, role: answer.role, tenant: answer.tenant, expires_s }));
    if (made) tell(`Token ${answer.name}`, "It is shown once. Its holder may do what its role may.", made.token);
    fresh();
  }

  async function makeLink() {
    const made = await attempt(() => post("/api/links"));
    if (made) tell("A link that works once", `For ${seconds(made.seconds)}, as ${info.you}.`, `${location.origin}/sign-in#${made.code}`);
  }

  const fresh = keepFresh(refresh, { everyMs: 10_000, concerns: (event) => /token|policy|quota/.test(event.event), failed: (error) => put(policy, empty(error.message, error.remedy)) });
}

function once(box, values, draw) {
  const key = JSON.stringify(values);
  if (box.dataset.drawn === key) return;
  box.dataset.drawn = key;
  draw();
}

function tell(title, text, secret) {
  const dialog = h("dialog", { "aria-labelledby": "told-title" }, h("div", { class: "inside" }, h("h2", { id: "told-title" }, title), h("p", { class: "soft" }, text), command(secret), h("footer", null, h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Done"))));
  dialog.addEventListener("close", () => dialog.remove());
  open(dialog);
}
