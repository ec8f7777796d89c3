// The panels that ask something of the query: orders, which need the control token, and what-if simulations.

import { clock, dollars, duration, element, percent } from "./format.js";

const TOKEN = "penstock-token";

export class ControlPanel {
  constructor(root, source, model) {
    this.root = root;
    this.source = source;
    this.takeFromAddress();
    root.hidden = !model.controllable;
    if (!model.controllable) return;
    this.answer = element("p", { class: "answer", role: "status" });
    this.token = field("Control token", "password", { autocomplete: "off", value: sessionStorage.getItem(TOKEN) ?? "" });
    this.token.input.addEventListener("input", () => sessionStorage.setItem(TOKEN, this.token.input.value));
    this.latency = field("SLA latency", "text", { placeholder: "1s" });
    this.window = field("SLA window", "text", { placeholder: "1s" });
    this.margin = field("Margin in reserve", "number", { min: 0, max: 0.9, step: 0.05, placeholder: "0.2" });
    this.step = picker("Step", Object.keys(model.facts.slots));
    this.slots = field("Slots", "text", { placeholder: "0-3,20", id: "move-slots" });
    this.host = picker("To host", []);
    this.hosts = field("Hosts", "number", { min: 1, step: 1, placeholder: "4" });
    this.pause = element("button", { type: "button" }, "Pause the controller");
    this.pause.addEventListener("click", () => this.order("steer", { dry_run: !this.paused }));
    root.replaceChildren(
      element("div", { class: "head" }, element("h2", { id: "control-title" }, "Control")),
      element("p", { class: "quiet about" }, "Orders need the control token of this run. `penstock dashboard CHECKPOINT` prints it."),
      form("Token", [this.token.box], null, () => {}),
      form("SLA", [this.latency.box, this.window.box, this.margin.box], "Change", () =>
        this.order("steer", filled({ latency: this.latency.input.value, window: this.window.input.value, margin: number(this.margin) }))),
      form("Move slots", [this.step.box, this.slots.box, this.host.box], "Move", () =>
        this.order("move", { step: this.step.input.value, slots: this.slots.input.value, to: this.host.input.value })),
      form("Scale the step", [this.hosts.box], "Scale", () =>
        this.order("scale", { step: this.step.input.value, hosts: number(this.hosts) })),
      this.pause, this.answer);
    this.update(model);
  }

  // `#token=...` in the address fills in the token, and leaves the address.
  takeFromAddress() {
    const token = new URLSearchParams(location.hash.slice(1)).get("token");
    if (!token) return;
    sessionStorage.setItem(TOKEN, token);
    history.replaceState(null, "", location.pathname + location.search);
  }

  update(model) {
    if (!this.answer) return;
    const { moment } = model;
    if (!model.running) this.root.hidden = true;
    this.paused = Boolean(moment?.dry_run);
    this.pause.textContent = this.paused ? "Resume the controller" : "Pause the controller";
    this.pause.disabled = !moment?.policy;
    if (moment?.sla) {
      this.latency.input.placeholder = duration(moment.sla.latency_ms);
      this.window.input.placeholder = duration(moment.sla.window_ms);
    }
    const step = moment?.steps.find((one) => one.step === this.step.input.value);
    const names = (step?.hosts ?? []).filter((host) => host.up).map((host) => host.host);
    if (step?.margin != null) this.margin.input.placeholder = step.margin;
    if (names.join() !== this.names) {
      this.names = names.join();
      const chosen = this.host.input.value;
      this.host.input.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
      if (names.includes(chosen)) this.host.input.value = chosen;
    }
  }

  pick(step, slot) {
    if (!this.answer) return;
    this.step.input.value = step;
    const before = this.slots.input.value.trim();
    this.slots.input.value = before ? `${before},${slot}` : `${slot}`;
  }

  async order(name, body) {
    this.say("Asking the query", "");
    try {
      const { done } = await this.source.order(name, body, this.token.input.value.trim());
      this.say(done, "good");
    } catch (refused) {
      this.say(`Refused: ${refused.message}`, "bad");
    }
  }

  say(text, health) {
    this.answer.textContent = text;
    this.answer.dataset.health = health;
  }
}

export class WhatIfPanel {
  constructor(root, source) {
    this.source = source;
    root.hidden = source.kept;
    if (source.kept) return;
    this.policy = field("Policy", "text", { placeholder: "switch(0.2)" });
    this.latency = field("SLA latency", "text", { placeholder: "1s" });
    this.margin = field("Margin in reserve", "number", { min: 0, max: 0.9, step: 0.05, placeholder: "0.2" });
    this.most = field("At most, hosts", "number", { min: 1, step: 1, placeholder: "8" });
    this.result = element("div", { "aria-live": "polite" });
    root.replaceChildren(
      element("div", { class: "head" }, element("h2", { id: "what-if-title" }, "What if")),
      element("p", { class: "quiet about" }, "Simulates the recorded load under other settings. Leave a field empty to keep what was. While the query runs, it needs the control token."),
      form("What if", [this.policy.box, this.latency.box, this.margin.box, this.most.box], "Simulate", () => this.run()),
      this.result);
  }

  async run() {
    this.result.replaceChildren(element("p", { class: "quiet" }, "Simulating. An hour may take a minute."));
    const body = filled({ policy: this.policy.input.value, latency: this.latency.input.value, margin: number(this.margin), at_most: number(this.most) });
    try {
      drawWhatIf(this.result, await this.source.whatIf(body, sessionStorage.getItem(TOKEN)));
    } catch (refused) {
      this.result.replaceChildren(element("p", { class: "answer", data: { health: "bad" } }, refused.message));
    }
  }
}

export function drawWhatIf(root, found) {
  const versions = [["recorded", found.recorded], ["simulated as it was", found.as_it_was], ["simulated what-if", found.what_if]];
  const shown = versions.filter(([, version]) => version);
  const head = ["", "SLA kept", "hosts on average", "cost"].map((name) => element("th", { scope: "col" }, name));
  const body = shown.map(([name, version]) => element("tr", {},
    element("th", { scope: "row" }, name, element("span", { class: "quiet" }, ` ${version.policy}, ${duration(version.latency_ms)}`)),
    element("td", {}, percent(version.success, 1)), element("td", {}, version.hosts.toFixed(1)), element("td", {}, dollars(version.money))));
  const box = element("div", { class: "plot", role: "img", "aria-label": "Hosts over time in each version" });
  const chips = element("div", { class: "chips" }, element("span", {}, "hosts over time:"), ...shown.map(([name], at) => {
    const swatch = element("i");
    swatch.style.background = cssColor(VERSIONS[at]);
    return element("span", { class: "chip" }, swatch, name);
  }));
  const assumed = element("ul", { class: "quiet assumed" }, ...found.assumed.map((text) => element("li", {}, text)));
  root.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)), chips, box,
    element("details", {}, element("summary", { class: "quiet" }, "What the simulation assumes"), assumed));
  const axis = { stroke: cssColor("--quiet"), grid: { stroke: cssColor("--grid"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const lines = shown.map((_, at) => ({ stroke: cssColor(VERSIONS[at]), width: 2, points: { show: false }, paths: uPlot.paths.stepped({ align: -1 }) }));
  const series = [found.time_ms.map((ms) => ms / 1000), ...shown.map(([, version]) => version.hosts_by_second)];
  new uPlot({
    width: box.clientWidth || 300, height: 150, legend: { show: false }, series: [{}, ...lines],
    scales: { y: { range: (_, low, high) => [0, (high || 1) * 1.15] } },
    axes: [{ ...axis, grid: { show: false }, values: (_, seconds) => seconds.map((s) => clock(s * 1000)), space: 70 }, { ...axis, size: 34 }],
  }, series, box);
}

const VERSIONS = ["--c-hosts", "--quiet", "--c-functions"];
const cssColor = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function field(label, type, attributes) {
  const input = element("input", { type, ...attributes });
  return { input, box: element("label", { class: "field" }, element("span", {}, label), input) };
}

function picker(label, options) {
  const input = element("select", {}, ...options.map((name) => element("option", { value: name }, name)));
  return { input, box: element("label", { class: "field" }, element("span", {}, label), input) };
}

function form(legend, fields, verb, submit) {
  const made = element("form", { class: "row", "aria-label": legend }, ...fields, verb && element("button", { type: "submit" }, verb));
  made.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  return made;
}

function number({ input }) {
  return input.value === "" ? null : Number(input.value);
}

function filled(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value !== "" && value != null));
}
