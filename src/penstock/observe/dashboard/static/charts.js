// The charts: what each one shows, and how it is drawn with uPlot.

import { bytes, clock, compact, count, counted, dollars, duration, element, percent } from "./format.js";
import { boundsOf, rollingSuccess } from "./model.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const perSecond = (value) => (value == null ? "–" : `${compact(value)} rows/s`);
const MARKS = { "scale out": "▲", "scale in": "▼", balance: "⇄", "host lost": "✕", "host leaves": "✕",
  "hot key": "●", setting: "S", offload: "ƒ", couriers: "C", split: "÷", failed: "!",
  "move by hand": "↔", "scale by hand": "↕" };
const BAD_MARKS = ["host lost", "host leaves", "hot key", "failed"];
const LEAST_TO_NAME = 420;
const MORE_COLORS = ["--c-backlog", "--c-process", "--mark", "--c-hosts"];

// Each chart: its lines are {label, color, of(series) -> values, text(value), ...drawing options}, or follow from
// the SLA's bounds.
export const CHARTS = [
  {
    id: "latency", title: "Latency and the SLA", text: duration, bound: true, marks: "lines",
    about: "From a row's arrival until its result is in the sink, and in steps that have a bound of their own.",
    lines: latencyLines,
  },
  {
    id: "input", title: "Input and backlog", text: compact, marks: "lines",
    about: "Rows that arrive per second, and rows that wait.",
    lines: [
      { label: "input", color: "--c-input", of: (s) => s.rate, text: perSecond, fill: true },
      { label: "backlog", color: "--c-backlog", of: (s) => s.backlog, scale: "right", width: 1.5,
        text: (v) => (v == null ? "–" : `${compact(v)} rows`) },
    ],
  },
  {
    id: "hosts", title: "Hosts and functions", text: count, marks: "glyphs", whole: true,
    about: "How many work, and every treatment of the controller.",
    lines: [
      { label: "hosts", color: "--c-hosts", of: (s) => s.hosts, step: true, fill: true, width: 2 },
      { label: "functions", color: "--c-functions", of: (s) => s.functions, step: true, fill: true, width: 2 },
    ],
  },
  {
    id: "success", title: "SLA kept", text: (v) => percent(v, 1), share: true,
    about: "Share of the last minute's windows in which each bound was kept.",
    lines: successLines,
  },
  {
    id: "epochs", title: "What an epoch's time goes into", text: duration, stacked: true,
    about: "Average epoch: read, process until the sink has it, seal.",
    lines: [
      { label: "seal", color: "--c-seal", of: (s) => s.seal_ms },
      { label: "process", color: "--c-process", of: (s) => s.process_ms },
      { label: "read", color: "--c-read", of: (s) => s.read_ms },
    ],
  },
  {
    id: "state", title: "State", text: bytes, about: "Size of the state of all hosts in memory.",
    lines: [{ label: "state", color: "--c-mean", of: (s) => s.state_bytes, fill: true, width: 2 }],
  },
  {
    id: "moves", title: "What moves of the state", text: compact, least: 10,
    about: "Entries that followed their slots, and those that did not have to.",
    lines: [
      { label: "fetched", color: "--c-hosts", of: (s) => s.fetched, bars: true,
        text: (v) => counted(v ?? 0, "entry").replace("entrys", "entries") },
      { label: "not asked for yet", color: "--c-backlog", of: (s) => s.left_behind, scale: "right", width: 1.5,
        text: (v) => `${compact(v)} entries` },
      { label: "requests", color: "--c-p50", of: (s) => s.asked, text: count, width: 1.25 },
    ],
  },
  {
    id: "money", title: "Cost since the start", text: dollars,
    about: "Hosts by their time, functions by their bill, in US dollars.",
    lines: [{ label: "spent", color: "--c-functions", of: (s) => s.money, fill: true, width: 2 }],
  },
];

// The flow's latency, that of each step with a bound, and every bound.
function latencyLines(bounds) {
  const steps = bounds.filter((bound) => bound.step != null);
  const first = boundLabel(bounds);
  return [
    { label: "p99", color: "--c-p99", of: (s) => s.p99_ms, width: 1.25, dash: [4, 3] },
    { label: "p50", color: "--c-p50", of: (s) => s.p50_ms, width: 1.25 },
    { label: "mean", color: "--c-mean", of: (s) => s.mean_ms, width: 2.5 },
    ...steps.map(({ name }, at) => ({ label: name, color: moreColor(at), of: reachedOf(name), width: 1.75 })),
    ...bounds.map(({ name }) => ({ label: first(name), color: "--bad", of: limitOf(name), width: 1.5, dash: [8, 5],
      step: true, bounds: name })),
  ];
}

function successLines(bounds) {
  if (!bounds.length) return [{ label: "no SLA", color: "--good", of: (s) => s.time_ms.map(() => null) }];
  return bounds.map(({ name }, at) => ({ label: bounds.length > 1 ? name : "last minute", fill: !at, width: 2,
    color: at ? moreColor(at - 1) : "--good", of: (s) => rollingSuccess(s, name) }));
}

const moreColor = (at) => MORE_COLORS[at % MORE_COLORS.length];
const columnOf = (name) => (s) => s[name] ?? s.time_ms.map(() => null);
const reachedOf = (name) => columnOf(`reached:${name}`);
const limitOf = (name) => columnOf(`limit:${name}`);
const boundLabel = (bounds) => (name) => (bounds.length === 1 && name === "mean" ? "SLA" : `SLA ${name}`);

export class Charts {
  constructor(model, { hovered, zoomed }) {
    this.model = model;
    this.hovered = hovered;
    this.zoomed = zoomed;
    this.span = null;
    this.sync = uPlot.sync("penstock");
    this.made = [];
    this.resized = new ResizeObserver((seen) => {
      for (const { target } of seen) {
        const one = this.made.find((made) => made.box === target);
        if (one && target.clientWidth) one.plot.setSize({ width: target.clientWidth, height: heightOf(one.chart) });
      }
    });
    this.build();
  }

  // Make all charts anew, in the colours of the theme.
  build() {
    for (const { plot, box } of this.made) {
      this.resized.unobserve(box);
      plot.destroy();
    }
    const bounds = boundsOf(this.model.moment?.sla);
    this.bounds = namesOf(bounds);
    this.made = CHARTS.map((chart) =>
      this.make(typeof chart.lines === "function" ? { ...chart, lines: chart.lines(bounds) } : chart));
    for (const { box } of this.made) this.resized.observe(box);
    this.update();
  }

  make(chart) {
    const figure = document.getElementById(`chart-${chart.id}`);
    const readouts = chart.lines.map((line) => element("b", {}, "–"));
    const chips = chart.lines.map((line, at) => {
      const swatch = element("i", { class: line.dash ? "dash" : "" });
      swatch.style.background = line.dash ? "none" : css(line.color);
      swatch.style.borderColor = css(line.color);
      return element("span", { class: "chip" }, swatch, `${line.label} `, readouts[at]);
    });
    const note = element("p", { class: "note quiet" });
    const box = element("div", { class: "plot", role: "img", "aria-label": chart.title });
    const caption = element("figcaption", {}, element("h2", {}, chart.title), element("p", { class: "quiet" }, chart.about));
    figure.replaceChildren(element("div", { class: "head" }, caption, element("div", { class: "chips" }, ...chips)), box);
    if (chart.marks === "glyphs") figure.append(note);
    const made = { chart, box, readouts, note };
    made.plot = new uPlot(this.options(made), [[], ...chart.lines.map(() => [])], box);
    return made;
  }

  options(made) {
    const { chart, box } = made;
    const axis = { stroke: css("--quiet"), font: "11px system-ui, sans-serif", ticks: { show: false },
      grid: { stroke: css("--grid"), width: 1 } };
    const label = (text) => (_, values) => values.map((value) => (value == null ? "" : text(value)));
    const right = chart.lines.find((line) => line.scale);
    return {
      width: box.clientWidth || 400,
      height: heightOf(chart),
      padding: [chart.marks === "glyphs" ? 18 : 8, right ? 0 : 12, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: this.sync.key, setSeries: false },
        drag: { x: true, y: false, setScale: false },
        points: { size: 7 },
      },
      scales: {
        x: { time: true, range: (_, min, max) => this.span ?? [min, max === min ? min + 1 : max] },
        y: { range: (_, min, max) => rangeOf(chart, this.model, max) },
        ...(right && { right: { range: (_, min, max) => [0, Math.max(max * 1.1, 10)] } }),
      },
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 28,
          values: (_, seconds) => seconds.map((s) => clock(s * 1000)) },
        { ...axis, size: 62, values: label(chart.text), ...(chart.whole && { incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }) },
        ...(right ? [{ ...axis, side: 1, scale: "right", size: 50, grid: { show: false }, values: label(compact) }] : []),
      ],
      series: [{}, ...chart.lines.map((line) => seriesOf(line, chart))],
      hooks: {
        drawClear: chart.bound ? [(u) => shadeAbove(u, chart)] : [],
        draw: [(u) => chart.bound && fillMissed(u, chart), (u) => chart.marks && drawMarks(u, this.model.marks, chart.marks)],
        setCursor: [(u) => this.read(made, u.cursor.idx)],
        setSelect: [(u) => {
          if (u.select.width > 8) {
            this.zoomed(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
          }
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        }],
      },
    };
  }

  // Draw the model's series. `span` is the time shown, in seconds since 1970; null for all.
  update(span = this.span) {
    this.span = span;
    if (namesOf(boundsOf(this.model.moment?.sla)) !== this.bounds) {
      this.build();  // which draws them
      return;
    }
    const seconds = this.model.series.time_ms.map((ms) => ms / 1000);
    for (const made of this.made) {
      made.values = made.chart.lines.map((line) => line.of(this.model.series));
      made.plot.setData([seconds, ...(made.chart.stacked ? stacked(made.values) : made.values)]);
      this.read(made, made.plot.cursor.idx);
      const { box, chart, readouts } = made;
      const said = chart.lines.map((line, at) => `${line.label} ${readouts[at].textContent}`).join(", ");
      box.setAttribute("aria-label", `${chart.title}: ${said}`);
    }
  }

  // Show the values under the pointer, or the newest ones.
  read(made, at) {
    const times = this.model.series.time_ms;
    const inside = at != null && at < times.length;
    made.chart.lines.forEach((line, n) => {
      const column = made.values?.[n] ?? [];
      const value = inside ? column[at] : column.findLast((one) => one != null);
      made.readouts[n].textContent = (line.text ?? made.chart.text)(value);
    });
    if (made.chart.marks === "glyphs") {
      made.note.textContent = this.story(inside ? times[at] : null);
      this.hovered(inside ? times[at] : null);
    }
  }

  // The mark near a time in words, or what the signs mean.
  story(ms) {
    if (ms != null) {
      const width = (this.model.endedMs - this.model.series.time_ms[0]) / 60;
      const near = this.model.marks.filter((mark) => Math.abs(mark.time_ms - ms) <= Math.max(width, 1500));
      if (near.length) return near.map((mark) => `${clock(mark.time_ms)} ${mark.kind}: ${mark.text}`).join("  ·  ");
    }
    const kinds = new Set(this.model.marks.flatMap((mark) => mark.kind.split(", ")));
    return [...kinds].map((kind) => `${MARKS[kind] ?? "•"} ${kind === "offload" ? "functions" : kind}`).join("   ");
  }
}

function heightOf(chart) {
  const small = window.innerWidth < 700;
  return ["latency", "input"].includes(chart.id) ? (small ? 180 : 230) : small ? 150 : 180;
}

function rangeOf(chart, model, max) {
  if (chart.share) return [0, 1.02];
  const limits = chart.bound ? chart.lines.filter((line) => line.bounds).map((line) => line.of(model.series)) : [];
  const bound = limits.flat().reduce((most, ms) => Math.max(most, ms ?? 0), 0) * 1.3;
  return [0, Math.max((max ?? 0) * 1.12, bound, chart.whole ? 2 : 0, chart.least ?? 0) || 1];
}

function seriesOf(line, chart) {
  const color = css(line.color);
  const paths = line.bars ? uPlot.paths.bars({ size: [0.8, 12] }) : line.step ? uPlot.paths.stepped({ align: -1 }) : uPlot.paths.linear();
  const filled = line.fill || line.bars || chart.stacked;
  return {
    label: line.label, stroke: color, width: chart.stacked ? 1 : line.width ?? 1.75, dash: line.dash, paths,
    scale: line.scale ?? "y", show: line.shown !== false, spanGaps: true, points: { show: false },
    fill: filled ? (chart.stacked || line.bars ? color : `${color}30`) : undefined,
  };
}

// The lines one above the other: the last one at the bottom.
function stacked(columns) {
  const sums = [];
  let below = columns[0].map(() => 0);
  for (const column of [...columns].reverse()) {
    below = below.map((sum, at) => (column[at] == null ? null : (sum ?? 0) + column[at]));
    sums.unshift(below);
  }
  return sums;
}

function namesOf(bounds) {
  return bounds.map((bound) => bound.name).join();
}

// The path along a bound's limits, closed over the top of the chart.
function aboveBound(u, bounds) {
  const { bbox } = u, path = new Path2D();
  let last = null;
  bounds.forEach((bound, at) => {
    if (bound == null) return;
    const x = u.valToPos(u.data[0][at], "x", true), y = u.valToPos(bound, "y", true);
    if (last == null) path.moveTo(bbox.left, y);
    else path.lineTo(x, last);
    path.lineTo(x, y);
    last = y;
  });
  if (last == null) return null;
  path.lineTo(bbox.left + bbox.width, last);
  path.lineTo(bbox.left + bbox.width, bbox.top);
  path.lineTo(bbox.left, bbox.top);
  path.closePath();
  return path;
}

// Several limits would be shaded over each other, so each has its name instead.
function shadeAbove(u, chart) {
  const limits = limitsOf(u, chart), path = limits.length === 1 && aboveBound(u, limits[0].values);
  if (!path) return;
  u.ctx.save();
  u.ctx.fillStyle = css("--bad-wash");
  u.ctx.fill(path);
  u.ctx.restore();
}

// The lines that are limits: their names and values, and the values of the figures that they limit.
function limitsOf(u, chart) {
  const figures = new Map(chart.lines.map((line, at) => [line.label, u.data[at + 1]]));
  return chart.lines.map((line, at) => ({ name: line.bounds, values: u.data[at + 1], figures: figures.get(line.bounds) }))
    .filter((limit) => limit.name);
}

// The area under each figure, where it is above its bound.
function fillMissed(u, chart) {
  const limits = limitsOf(u, chart);
  for (const limit of limits) fillAbove(u, aboveBound(u, limit.values), limit.figures);
  if (limits.length > 1) nameLimits(u, limits);
}

// The names of limits on their lines, each further to the right, since limits may be close to each other. On a
// phone there is no room.
function nameLimits(u, limits) {
  const { ctx, bbox } = u, ratio = devicePixelRatio;
  if (bbox.width < LEAST_TO_NAME * ratio) return;
  let x = bbox.left + 8 * ratio;
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const { name, values } of limits) {
    const limit = values.findLast((value) => value != null), said = `${name} ≤ ${duration(limit)}`;
    if (limit == null) continue;
    const y = u.valToPos(limit, "y", true), { width } = ctx.measureText(said);
    ctx.fillStyle = css("--card");
    ctx.fillRect(x - 4 * ratio, y - 6 * ratio, width + 8 * ratio, 12 * ratio);
    ctx.fillStyle = css("--bad");
    ctx.fillText(said, x, y);
    x += width + 20 * ratio;
  }
  ctx.restore();
}

function fillAbove(u, path, means) {
  const { ctx, bbox } = u;
  if (!path) return;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.clip(path);
  ctx.fillStyle = css("--bad-fill");
  ctx.beginPath();
  let first = null, x = 0;
  means.forEach((mean, at) => {
    if (mean == null) return;
    x = u.valToPos(u.data[0][at], "x", true);
    first ??= x;
    ctx.lineTo(x, u.valToPos(mean, "y", true));
  });
  if (first != null) {
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.lineTo(first, bbox.top + bbox.height);
    ctx.fill();
  }
  ctx.restore();
}

function drawMarks(u, marks, how) {
  const { ctx, bbox } = u, { min, max } = u.scales.x, ratio = devicePixelRatio;
  ctx.save();
  ctx.textAlign = "center";
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  let taken = -Infinity;
  for (const mark of marks) {
    const seconds = mark.time_ms / 1000, kind = mark.kind.split(", ")[0];
    if (seconds < min || seconds > max) continue;
    const x = Math.round(u.valToPos(seconds, "x", true));
    ctx.strokeStyle = ctx.fillStyle = css(BAD_MARKS.includes(kind) ? "--bad" : "--mark");
    ctx.globalAlpha = how === "lines" ? 0.35 : 0.7;
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    ctx.beginPath();
    ctx.moveTo(x + 0.5, bbox.top);
    ctx.lineTo(x + 0.5, bbox.top + bbox.height);
    ctx.stroke();
    if (how === "glyphs" && x - taken > 10 * ratio) {
      ctx.globalAlpha = 1;
      ctx.fillText(MARKS[kind] ?? "•", x, bbox.top - 5 * ratio);
      taken = x;
    }
  }
  ctx.restore();
}
