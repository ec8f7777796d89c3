// The top of the page: name, state, the SLA in words, one sentence on what happens, and the big figures.

import { bytes, compact, count, counted, dollars, duration, element, percent } from "./format.js";
import { boundsOf } from "./model.js";

const byId = (id) => document.getElementById(id);
const GOAL = 0.99;

export function drawTop(model) {
  const { facts, moment } = model, sla = moment?.sla;
  document.title = `${facts.name} – Penstock`;
  byId("name").textContent = facts.name;
  byId("promise").textContent = promiseOf(sla);
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

// The SLA in words: every bound, and the window if all have the same.
function promiseOf(sla) {
  const bounds = boundsOf(sla), windows = new Set(bounds.map((bound) => bound.window));
  if (!bounds.length) return "No SLA is set";
  const parts = bounds.map(({ p99, step, limit, window }) => {
    const latency = `${p99 ? "p99" : "mean"} latency${step == null ? "" : ` of step ${step}`} of at most ${duration(limit)}`;
    return windows.size > 1 ? `${latency} in every ${duration(window)}` : latency;
  });
  return `SLA: ${parts.join("; ")}${windows.size > 1 ? "" : `${bounds.length > 1 ? "," : ""} in every window of ${duration(bounds[0].window)}`}`;
}

// One sentence: what arrives, who works on it, and whether the SLA is kept.
function drawSummary(model) {
  const { moment } = model;
  if (!moment) return;
  const mean = model.now("mean_ms"), bounds = model.bounds, rate = model.now("rate"), usual = model.usualRate;
  const missed = model.idle ? [] : bounds.filter(isMissed), stalled = model.stalledMs, treating = moment.steps.find((step) => step.treating);
  const words = [];
  const times = usual && rate ? rate / usual : 1;
  if (["failed", "stopped", "finished"].includes(moment.state)) {
    words.push(`The query has ${moment.state === "stopped" ? "been stopped" : moment.state}`);
    if (moment.message !== moment.state) words.push(moment.message);
    for (const { name, run } of bounds) {
      words.push(`${bounds.length > 1 ? `the bound on the ${name}` : "the SLA"} was kept in ${percent(run, 1)} of its windows`);
    }
  } else if (stalled) {
    words.push(`Nothing has come out for ${duration(stalled)}, and ${compact(model.now("backlog"))} rows wait`);
    words.push(bounds.length ? `the bound is ${duration(bounds[0].limit)}` : "see what the query waits for");
    if (treating) words.push(`in progress: ${treating.treating}`);
    if (moment.message !== moment.state) words.push(moment.message);
  } else if (model.idle) {
    words.push("No rows arrive");
  } else if (mean == null) {
    words.push(moment.message === "running" ? "Running; no rows yet" : moment.message);
  } else {
    words.push(times >= 1.8 ? `Burst: ${compact(rate)} rows/s arrive, ${times.toFixed(1)} times the usual` : `${compact(rate)} rows/s arrive`);
    const workers = [counted(moment.steps.flatMap((s) => s.hosts).filter((h) => h.up).length, "host")];
    const functions = moment.steps.reduce((sum, step) => sum + step.functions, 0);
    if (functions) workers.push(counted(functions, "function"));
    words.push(`${workers.join(" and ")} work on them`);
    words.push(...latencyWords(mean, bounds, missed));
    if (treating) words.push(`in progress: ${treating.treating}`);
    if (moment.message !== moment.state) words.push(moment.message);
  }
  const summary = byId("summary");
  const near = bounds.some((bound) => bound.now > bound.limit / 2);
  const bad = moment.state === "failed" || stalled || (model.running && missed.length);
  summary.dataset.health = bad ? "bad" : treating || near ? "warn" : "good";
  byId("summary-text").textContent = `${words.join("; ")}.`;
}

const isMissed = (bound) => bound.now != null && bound.now > bound.limit;

// The figure of the first bound, and those of all others that are missed.
function latencyWords(mean, bounds, missed) {
  const [first] = bounds;
  if (!first) return [`latency is ${duration(mean)}`];
  const named = (bound) => (bound.name === "mean" ? "latency" : bound.name);
  return bounds.filter((bound) => bound === first || missed.includes(bound)).map((bound) => bound.now == null
    ? `latency is ${duration(mean)}, the bound on the ${bound.name} is ${duration(bound.limit)}`
    : `${named(bound)} is ${duration(bound.now)}, ${missed.includes(bound) ? "above" : "within"} the bound of ${duration(bound.limit)}`);
}

// How a figure stands to its bound: a colour.
function judged(bound, stalled) {
  if (stalled && bound && bound.step == null) return "bad";
  if (!bound || bound.now == null) return "none";
  return isMissed(bound) ? "bad" : bound.now > bound.limit / 2 ? "warn" : "good";
}

const judge = (share) => (share == null ? "none" : share >= GOAL ? "good" : share >= 0.9 ? "warn" : "bad");

function drawTiles(model) {
  const { moment, bounds } = model, worst = model.worstBound, stalled = model.stalledMs, first = bounds[0];
  const hosts = model.now("hosts"), functions = model.now("functions");
  const state = model.now("state_bytes"), backlog = model.now("backlog");
  const down = (moment?.steps ?? []).flatMap((step) => step.hosts).filter((host) => !host.up && host.slots).length;
  const perHour = hourly(model);
  const minute = worst?.minute ?? null, of = bounds.length > 1 && worst ? `${worst.name}, the worst: ` : "";
  const tiles = [
    stalled && first ? ["SLA kept, last minute", "Missing", `${percent(worst?.run, 1)} of the run before; windows count when rows come out`, "bad"]
      : ["SLA kept, last minute", percent(minute, 1), `${of}${percent(worst?.run, 1)} of the run (${counted(worst?.windows ?? 0, "window")})`, judge(minute)],
    latencyTile(model, first, stalled),
    ["Input", model.idle ? "0" : stalled ? "–" : compact(model.now("rate")), `rows/s; ${compact(backlog)} rows wait`, stalled ? "bad" : "none"],
    ["Hosts", count(hosts), [functions ? `and ${counted(functions, "function")}` : "no functions", down ? `${down} down` : null].filter(Boolean).join("; "), down ? "bad" : "none"],
    ["State", bytes(state), `${counted(model.totals.moved, "slot")} moved so far`, "none"],
    ["Cost", dollars(model.now("money")), perHour == null ? "since the start" : `${dollars(perHour)} per hour now`, "none"],
  ];
  byId("tiles").replaceChildren(...tiles.map(tile));
  byId("bounds").hidden = bounds.length < 2;
  byId("bounds").replaceChildren(...(bounds.length < 2 ? [] : bounds).map((bound) => tile(boundTile(bound, stalled))));
}

// The figure that the first bound is on. In a stall, how long nothing has come out.
function latencyTile(model, first, stalled) {
  const p99 = `p99 ${duration(model.now("p99_ms"))}`, mean = `mean ${duration(model.now("mean_ms"))}`;
  if (stalled) return ["No output for", duration(stalled), first ? `bound ${duration(first.limit)}` : p99, "bad", 1];
  if (!first || first.now == null) return ["Latency now", duration(model.now("mean_ms")), p99, "none"];
  const label = first.name === "mean" ? "Latency now" : `${capital(first.name)} now`;
  return [label, duration(first.now), `bound ${duration(first.limit)}, ${first.p99 || first.step ? mean : p99}`,
    judged(first, 0), first.now / first.limit];
}

function boundTile(bound, stalled) {
  const share = bound.now == null ? null : bound.now / bound.limit;
  const kept = `kept ${percent(bound.minute, 1)} of the last minute, ${percent(bound.run, 1)} of the run`;
  return [`${capital(bound.name)} ≤ ${duration(bound.limit)}`, duration(bound.now), kept, judged(bound, stalled), share];
}

const capital = (text) => (text.startsWith("p99") ? text : text[0].toUpperCase() + text.slice(1));

function tile([label, value, more, health, share]) {
  const meter = share == null ? null : element("span", { class: "meter", "aria-hidden": "true" }, element("i"));
  if (meter) meter.firstChild.style.width = `${Math.min(100, share * 100)}%`;
  return element("div", { class: "tile", data: { health } },
    element("h2", {}, label), element("p", { class: "big" }, value), meter, element("p", { class: "quiet" }, more));
}

// US dollars per hour over the last minute; null if too little is known.
function hourly(model) {
  const { time_ms: times, money } = model.recent;
  const last = times.length - 1, first = times.findIndex((ms) => ms >= times[last] - 60_000);
  const ms = times[last] - times[first];
  return ms >= 5000 && money[last] != null && money[first] != null ? ((money[last] - money[first]) * 3_600_000) / ms : null;
}
