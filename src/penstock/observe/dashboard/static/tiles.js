// The top of the page: name, state, the SLA in words, one sentence on what happens, and the big figures.

import { bytes, clock, compact, count, counted, dollars, duration, element, percent } from "./format.js";

const byId = (id) => document.getElementById(id);
const GOAL = 0.99;

export function drawTop(model) {
  const { facts, moment } = model, sla = moment?.sla;
  document.title = `${facts.name} – Penstock`;
  byId("name").textContent = facts.name;
  byId("promise").textContent = sla
    ? `SLA: mean latency of at most ${duration(sla.latency_ms)} in every window of ${duration(sla.window_ms)}`
    : "No SLA is set";
  const state = byId("state"), word = moment?.state ?? "starting";
  const paused = moment?.dry_run && model.running;
  state.textContent = paused ? `${word}, controller paused` : word;
  state.dataset.state = paused ? "paused" : word;
  const steps = Object.entries(facts.slots).map(([step, slots]) => `${step} (${counted(slots, "slot")})`);
  byId("foot").textContent = [
    `Penstock ${facts.version}`, facts.mode === "live" ? "live" : "micro-batches", `steps: ${steps.join(", ") || "none"}`,
    moment?.policy ? `policy ${moment.policy}` : "autoscaling is off", `checkpoint ${facts.checkpoint}`,
    `started ${new Date(facts.started_ms).toLocaleString("en-GB")}`,
  ].join("  ·  ");
  drawSummary(model);
  drawTiles(model);
}

// One sentence: what arrives, who works on it, and whether the SLA is kept.
function drawSummary(model) {
  const { moment } = model;
  if (!moment) return;
  const mean = model.now("mean_ms"), bound = moment.sla?.latency_ms, rate = model.now("rate"), usual = model.usualRate;
  const missed = bound != null && mean > bound, treating = moment.steps.find((step) => step.treating);
  const words = [];
  const times = usual && rate ? rate / usual : 1;
  if (["failed", "stopped", "finished"].includes(moment.state)) {
    words.push(`The query has ${moment.state === "stopped" ? "been stopped" : moment.state}`);
    if (moment.message !== moment.state) words.push(moment.message);
    words.push(`the SLA was kept in ${percent(model.runSuccess, 1)} of its windows`);
  } else if (mean == null) {
    words.push(moment.message === "running" ? "Running; no rows yet" : moment.message);
  } else {
    words.push(times >= 1.8 ? `Burst: ${compact(rate)} rows/s arrive, ${times.toFixed(1)} times the usual` : `${compact(rate)} rows/s arrive`);
    const workers = [counted(moment.steps.flatMap((s) => s.hosts).filter((h) => h.up).length, "host")];
    const functions = moment.steps.reduce((sum, step) => sum + step.functions, 0);
    if (functions) workers.push(counted(functions, "function"));
    words.push(`${workers.join(" and ")} work on them`);
    words.push(bound == null ? `latency is ${duration(mean)}`
      : `latency is ${duration(mean)}, ${missed ? "above" : "within"} the bound of ${duration(bound)}`);
    if (treating) words.push(`in progress: ${treating.treating}`);
    if (moment.message !== moment.state) words.push(moment.message);
  }
  const summary = byId("summary");
  summary.dataset.health = moment.state === "failed" || missed ? "bad" : treating || mean > bound / 2 ? "warn" : "good";
  byId("summary-text").textContent = `${words.join("; ")}.`;
}

function drawTiles(model) {
  const { moment } = model;
  const bound = moment?.sla?.latency_ms, mean = model.now("mean_ms"), p99 = model.now("p99_ms");
  const minute = model.minuteSuccess, hosts = model.now("hosts"), functions = model.now("functions");
  const state = model.now("state_bytes"), backlog = model.now("backlog");
  const judge = (share) => (share == null ? "none" : share >= GOAL ? "good" : share >= 0.9 ? "warn" : "bad");
  const down = (moment?.steps ?? []).flatMap((step) => step.hosts).filter((host) => !host.up && host.slots).length;
  const perHour = hourly(model);
  const tiles = [
    ["SLA kept, last minute", percent(minute, 1), `${percent(model.runSuccess, 1)} of the run (${counted(model.totals.windows, "window")})`, judge(minute)],
    ["Latency now", duration(mean), bound ? `bound ${duration(bound)}, p99 ${duration(p99)}` : `p99 ${duration(p99)}`,
      mean == null || !bound ? "none" : mean > bound ? "bad" : mean > bound / 2 ? "warn" : "good", bound && mean ? mean / bound : null],
    ["Input", `${compact(model.now("rate"))}`, `rows/s; ${compact(backlog)} rows wait`, "none"],
    ["Hosts", count(hosts), [functions ? `and ${counted(functions, "function")}` : "no functions", down ? `${down} down` : null].filter(Boolean).join("; "), down ? "bad" : "none"],
    ["State", bytes(state), `${counted(model.totals.moved, "slot")} moved so far`, "none"],
    ["Cost", dollars(model.now("money")), perHour == null ? "since the start" : `${dollars(perHour)} per hour now`, "none"],
  ];
  byId("tiles").replaceChildren(...tiles.map(([label, value, more, health, share]) => {
    const meter = share == null ? null : element("span", { class: "meter", "aria-hidden": "true" }, element("i"));
    if (meter) meter.firstChild.style.width = `${Math.min(100, share * 100)}%`;
    return element("div", { class: "tile", data: { health } },
      element("h2", {}, label), element("p", { class: "big" }, value), meter, element("p", { class: "quiet" }, more));
  }));
}

// US dollars per hour over the last minute; null if too little is known.
function hourly(model) {
  const { time_ms: times, money } = model.recent;
  const last = times.length - 1, first = times.findIndex((ms) => ms >= times[last] - 60_000);
  const ms = times[last] - times[first];
  return ms >= 5000 && money[last] != null && money[first] != null ? ((money[last] - money[first]) * 3_600_000) / ms : null;
}
