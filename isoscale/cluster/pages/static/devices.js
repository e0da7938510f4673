// The map of devices: by node and kind, each with the name of the job that holds it, its colour and its pattern.
import { h, keyed, setText } from "./dom.js";
import { plural } from "./format.js";
import { address, colours } from "./job-view.js";

const DENSE = 96;
const WORDS = { free: "free", releasing: "being freed", away: "lent out", held: "held" };

// `tools(node)`: what an operator can do with a node.
export function makeDeviceMap({ tools = () => [] } = {}) {
  const element = h("div", { class: "nodes" });

  function makeNode(node) {
    const said = h("span", { class: "quiet small" });
    const devices = h("div", { class: "devices" });
    const box = h("section", { class: "node", "aria-label": node.name }, h("header", null, h("h3", null, node.name), h("span", { class: "kind" }, node.kind), said, h("span", { class: "grow" }), tools(node)), devices);
    return Object.assign(box, { said, devices });
  }

  function update(nodes, nameOf) {
    keyed(element, nodes, (node) => node.name, makeNode, (box, node) => {
      const held = node.devices.filter((one) => one.state === "held" || one.state === "releasing").length;
      const away = node.num_devices - node.num_ours;
      setText(box.said, `${held} of ${plural(node.num_ours, "device")} held${away ? ` · ${away} lent out` : ""}`);
      box.devices.classList.toggle("dense", node.devices.length > DENSE);
      keyed(box.devices, node.devices, (one) => `${one.id}|${one.state}|${one.job}|${nameOf(one.job)}`, (one) => makeDevice(one, nameOf(one.job)));
    });
  }

  return { element, update };
}

function makeDevice(one, name) {
  const held = one.state === "held" || one.state === "releasing";
  const what = held ? (one.job ? name || one.job : "another tenant") : WORDS[one.state];
  const title = `${one.id} (${one.kind}): ${WORDS[one.state]}${one.job ? ` by ${name || one.job} (${one.job})` : ""}`;
  const props = { class: `device ${one.job ? colours(one.job) : ""}`, "data-device": one.id, "data-state": one.state, "data-job": one.job || false, title };
  const inside = [h("span", { class: "what" }, what), h("span", { class: "id" }, [one.job, one.id.replace(`${one.node}/`, "")].filter(Boolean).join(" · "))];
  return one.job ? h("a", { ...props, href: address(one.job) }, inside) : h("div", props, inside);
}
