// The map of slots to hosts: a row for each host, a cell for each slot, coloured by its load. A slot that gets
// another host flies to its row.

import { bytes, compact, count, counted, duration, element, percent } from "./format.js";

const LEVELS = 8;
const MOST_CELLS = 1024;
const FLIGHT_MS = 900;
const FLASH_MS = 6000;

export class SlotMap {
  // `picked(step, slot)` is called when a cell is clicked.
  constructor(root, legend, picked) {
    this.root = root;
    this.legend = legend;
    this.picked = picked;
    this.steps = new Map();
    this.peak = this.top = 1;
  }

  draw(moment, animate = true) {
    const rates = moment.steps.flatMap((step) => step.rates);
    const most = Math.max(1, ...rates.slice(0, 40_000));
    this.peak = Math.max(most, this.peak * 0.97);
    this.top = nice(this.peak);
    const names = new Set(moment.steps.map((step) => step.step));
    for (const [name, drawn] of this.steps) {
      if (!names.has(name)) {
        drawn.box.remove();
        this.steps.delete(name);
      }
    }
    for (const step of moment.steps) this.drawStep(step, animate);
    this.drawLegend();
  }

  drawLegend() {
    if (this.legendTop === this.top) return;
    this.legendTop = this.top;
    const swatches = Array.from({ length: LEVELS }, (_, level) => element("i", { data: { level } }));
    this.legend.replaceChildren("0", ...swatches, `${compact(this.top)} records/s per slot`);
  }

  drawStep(step, animate) {
    const drawn = this.steps.get(step.step) ?? this.makeStep(step);
    const shown = step.rates.length <= MOST_CELLS ? null : busiest(step.rates);
    const flights = [];
    const wanted = new Map(step.hosts.map((host) => [host.host, []]));
    step.owner.forEach((at, slot) => {
      if (step.hosts[at] && (!shown || shown.has(slot))) wanted.get(step.hosts[at].host).push(slot);
    });
    const smooth = animate && drawn.owner && !matchMedia("(prefers-reduced-motion: reduce)").matches;
    step.owner.forEach((at, slot) => {
      const cell = drawn.cells.get(slot), host = nameOf(step, at);
      if (drawn.owner?.[slot] && host && drawn.owner[slot] !== host && cell && animate) {
        flights.push({ cell, from: smooth ? cell.getBoundingClientRect() : null });
      }
    });
    const focused = drawn.hosts.contains(document.activeElement) ? document.activeElement : null;
    this.drawHosts(step, drawn);
    for (const [host, slots] of wanted) {
      const cells = slots.map((slot) => this.cell(drawn, step, slot, host));
      const row = drawn.rows.get(host)?.cells;
      if (!row) continue;
      if (cells.length !== row.children.length || cells.some((cell, at) => row.children[at] !== cell)) row.replaceChildren(...cells);
    }
    for (const { cell, from } of flights) fly(cell, from);
    drawn.owner = step.owner.map((at) => nameOf(step, at));
    if (focused?.isConnected) focused.focus({ preventScroll: true });
    if (!drawn.hosts.contains(drawn.stop)) this.stopAt(drawn, drawn.hosts.querySelector(".slot"));
    drawn.box.dataset.size = step.rates.length <= 128 ? "large" : step.rates.length <= 400 ? "medium" : "small";
    const homeless = step.owner.filter((at) => !step.hosts[at]).length;
    drawn.rest.textContent = homeless ? `${counted(homeless, "slot")} without a host: waiting for one` : shown ? `and ${count(step.rates.length - MOST_CELLS)} more slots with less load` : "";
    drawn.box.setAttribute("aria-label", textOf(step));
  }

  makeStep(step) {
    const title = element("h3"), hosts = element("div", { class: "hosts", role: "group", "aria-label": `Slots of ${step.step}: arrow keys go through them, Enter chooses one to move` }), rest = element("p", { class: "quiet" });
    const box = element("div", { class: "step", role: "group" }, title, hosts, rest);
    const drawn = { box, title, hosts, rest, rows: new Map(), cells: new Map(), owner: null, stop: null };
    hosts.addEventListener("keydown", (event) => this.pressed(event, step.step, drawn));
    hosts.addEventListener("focusin", ({ target }) => target.classList.contains("slot") && this.stopAt(drawn, target));
    this.root.append(box);
    this.steps.set(step.step, drawn);
    return drawn;
  }

  // The one slot of a step that the Tab key reaches; arrow keys go on from there.
  stopAt(drawn, cell) {
    if (drawn.stop) drawn.stop.tabIndex = -1;
    drawn.stop = cell;
    if (cell) cell.tabIndex = 0;
  }

  pressed(event, step, drawn) {
    const cell = event.target;
    if (!cell.classList.contains("slot")) return;
    if (event.key === "Enter" || event.key === " ") this.picked(step, Number(cell.dataset.slot));
    else if (!this.go(cell, drawn, event.key)) return;
    event.preventDefault();
  }

  // Focus the slot that a key leads to. Whether the key leads anywhere.
  go(cell, drawn, key) {
    const every = [...drawn.hosts.querySelectorAll(".slot")], at = every.indexOf(cell);
    const rows = [...drawn.hosts.querySelectorAll(".cells")].filter((row) => row.children.length);
    const row = rows.indexOf(cell.parentNode), column = [...cell.parentNode.children].indexOf(cell);
    const inRow = (number) => rows[number] && rows[number].children[Math.min(column, rows[number].children.length - 1)];
    const targets = { ArrowRight: () => every[at + 1], ArrowLeft: () => every[at - 1], ArrowDown: () => inRow(row + 1),
      ArrowUp: () => inRow(row - 1), Home: () => cell.parentNode.firstChild, End: () => cell.parentNode.lastChild };
    if (!targets[key]) return false;
    targets[key]()?.focus();
    return true;
  }

  drawHosts(step, drawn) {
    const working = step.treating ? element("span", { class: "badge busy" }, step.treating) : null;
    const carried = step.functions
      ? element("span", { class: "badge" }, `${counted(step.functions, "function")} carry ${compact(step.redirected)} records/s`) : null;
    const health = step.health ? element("span", { class: "badge", data: { health: step.health } }, step.health) : null;
    drawn.title.replaceChildren(step.step, " ", ...[health, carried, working].filter(Boolean));
    const shown = step.hosts.filter((host) => host.up || host.slots);
    const state = Math.max(1, ...shown.map((host) => host.state_bytes));
    const names = new Set(shown.map((host) => host.host));
    for (const [name, row] of drawn.rows) {
      if (!names.has(name)) {
        row.box.remove();
        drawn.rows.delete(name);
      }
    }
    for (const host of step.hosts) {
      const row = drawn.rows.get(host.host) ?? makeRow(host.host, drawn);
      if (!names.has(host.host)) continue;
      drawRow(row, host, state);
      if (row.box.parentNode !== drawn.hosts) drawn.hosts.append(row.box);
    }
  }

  cell(drawn, step, slot, host) {
    let cell = drawn.cells.get(slot);
    if (!cell) {
      cell = element("i", { class: "slot", role: "button", tabindex: -1, data: { slot } });
      cell.addEventListener("click", () => this.picked(step.step, slot));
      drawn.cells.set(slot, cell);
    }
    const rate = step.rates[slot], level = Math.min(LEVELS - 1, Math.floor((rate / this.top) * LEVELS));
    if (cell.dataset.level !== String(level)) cell.dataset.level = level;
    const hot = step.hot_keys.some((key) => key.slot === slot);
    cell.classList.toggle("hot", hot);
    const said = `slot ${slot}: ${count(rate)} records/s, on ${host}${hot ? ", has a hot key" : ""}`;
    if (cell.title !== said) {
      cell.title = said;
      cell.setAttribute("aria-label", said);
    }
    return cell;
  }
}

// The owner of a slot; null while it waits for one.
function nameOf(step, at) {
  return step.hosts[at]?.host ?? null;
}

function makeRow(host, drawn) {
  const name = element("b", {}, host), health = element("span", { class: "health" });
  const cells = element("div", { class: "cells" });
  const load = element("span", { class: "meter" }, element("i")), loadText = element("span");
  const state = element("span", { class: "meter state" }, element("i")), stateText = element("span");
  const figures = element("div", { class: "figures quiet" }, element("span", { class: "figure" }, load, loadText),
    element("span", { class: "figure" }, state, stateText));
  const box = element("div", { class: "host" }, element("div", { class: "who" }, name, health), cells, figures);
  const row = { box, health, cells, load, loadText, state, stateText };
  drawn.rows.set(host, row);
  return row;
}

function drawRow(row, host, most) {
  const word = host.up ? host.health ?? "up" : "down";
  row.box.dataset.health = word;
  row.health.textContent = word;
  const load = host.rate != null && host.service_rate ? host.rate / host.service_rate : null;
  row.load.firstChild.style.width = `${Math.min(100, 100 * (load ?? 0))}%`;
  row.loadText.textContent = load == null ? `${counted(host.rows, "row")}` : `${percent(Math.min(load, 9.99)).replace("100 %", load > 1 ? `${Math.round(load * 100)} %` : "100 %")} of ${compact(host.service_rate)}/s`;
  row.state.firstChild.style.width = `${(100 * host.state_bytes) / most}%`;
  row.stateText.textContent = `${bytes(host.state_bytes)} state`;
  row.box.title = `${host.host}: ${counted(host.slots, "slot")}, ${count(host.rate)} records/s arrive, ${count(host.service_rate)} possible, `
    + `latency ${duration(host.latency_ms)}, ${count(host.entries)} entries of state`;
}

function fly(cell, from) {
  cell.classList.add("moved");
  clearTimeout(cell.moving);
  cell.moving = setTimeout(() => cell.classList.remove("moved"), FLASH_MS);
  if (!from) return;
  const to = cell.getBoundingClientRect();
  const path = `translate(${from.left - to.left}px, ${from.top - to.top}px)`;
  cell.animate([{ transform: path, zIndex: 2 }, { transform: "none", zIndex: 2 }], { duration: FLIGHT_MS, easing: "cubic-bezier(.3,.7,.2,1)" });
}

function busiest(rates) {
  const order = rates.map((rate, slot) => slot).sort((a, b) => rates[b] - rates[a]);
  return new Set(order.slice(0, MOST_CELLS));
}

function textOf(step) {
  const hosts = step.hosts.filter((host) => host.up || host.slots);
  return `${step.step}: ${hosts.map((host) => `${host.host} ${host.up ? host.health ?? "up" : "down"}, ${counted(host.slots, "slot")}`).join("; ")}`;
}

// The next round number.
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 6, 8, 10].find((step) => step * power >= value) * power;
}
