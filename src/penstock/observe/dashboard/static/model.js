// What the page knows: the series of the time shown, the last two minutes in full, totals, marks and moves.

const RECENT_MS = 120_000;
const MINUTE_MS = 60_000;
const LEAST_STALL_MS = 1_500;
const USUAL_STALL_MS = 10_000;

export class Model {
  constructor(recording) {
    this.facts = recording.facts;
    this.running = recording.running;
    this.controllable = Boolean(recording.controllable);
    this.series = recording.series;
    this.recent = recording.recent;
    this.totals = recording.totals;
    this.moment = recording.moment;
    this.marks = recording.marks;
    this.moves = recording.moves;
    this.journal = recording.journal;
    this.begunMs = recording.begun_ms;
    this.endedMs = recording.ended_ms;
  }

  // Takes in what happened. `sinceMs` is the begin of the time shown; older points are dropped. What is known
  // already may come again, after a lost connection.
  take(news, series, sinceMs) {
    const known = this.endedMs ?? 0, fresh = after(news.series, known);
    append(this.series, after(series, known), sinceMs);
    append(this.recent, fresh, this.endedMs - RECENT_MS);
    for (const name of ["windows", "kept", "rows", "moved", "fetched"]) {
      this.totals[name] += total(fresh[name]);
    }
    for (const [name, column] of Object.entries(fresh)) {
      const [count, bound] = name.split(/:(.*)/s);
      if (count !== "windows" && count !== "kept" || !bound) continue;
      const counts = (this.totals.bounds[bound] ??= { windows: 0, kept: 0 });
      counts[count] += total(column);
    }
    this.moment = news.moment ?? this.moment;
    this.endedMs = this.moment?.time_ms ?? this.endedMs;
    this.begunMs ??= this.endedMs;
    const marked = new Set(this.marks.map(nameOfMark));
    this.marks = this.marks.concat(news.marks.filter((mark) => !marked.has(nameOfMark(mark))));
    this.moves = this.moves.concat(news.moves.filter((move) => move.time_ms > known)).slice(-200);
    this.journal = news.journal ?? this.journal;
  }

  // Every bound of the SLA: its name in the series, its limit, the newest figure, and how often it was kept.
  get bounds() {
    return boundsOf(this.moment?.sla).map((bound) => {
      const { windows = 0, kept = 0 } = this.totals.bounds?.[bound.name] ?? {};
      const shares = rollingSuccess(this.recent, bound.name);
      return { ...bound, now: this.now(`reached:${bound.name}`), minute: shares[shares.length - 1] ?? null,
        windows, run: windows ? kept / windows : null };
    });
  }

  // Milliseconds since anything came out, while rows wait. 0 as long as that is shorter than the SLA's bound.
  get stalledMs() {
    const { time_ms: times, mean_ms: means, rows, backlog } = this.recent;
    if (this.moment?.state !== "running" || !times.length || !backlog.at(-1)) return 0;
    const flowing = times.findLastIndex((_, at) => means[at] != null || rows[at] > 0 || !backlog[at]);
    const since = flowing >= 0 ? times[flowing] : Math.max(times[0] - 1000, this.facts.started_ms);
    const stall = this.endedMs - since;
    return stall > this.longestMs ? stall : 0;
  }

  // The longest time without output that is no stall. Epochs end at intervals, so one second is no stall.
  get longestMs() {
    const bounds = boundsOf(this.moment?.sla), whole = bounds.filter((bound) => !bound.step);
    const limits = (whole.length ? whole : bounds).map((bound) => bound.limit);
    return Math.max(LEAST_STALL_MS, limits.length ? Math.min(...limits) : USUAL_STALL_MS);
  }

  // Whether no rows come: nothing has come out for some seconds, and nothing waits.
  get idle() {
    const { time_ms: times, rows, backlog } = this.recent;
    if (!times.length || backlog.at(-1)) return false;
    const worked = times.findLastIndex((_, at) => rows[at] > 0);
    return worked >= 0 && this.endedMs - times[worked] > USUAL_STALL_MS;
  }

  get points() {
    return this.series.time_ms.length;
  }

  // The newest value of a figure in the last two minutes; null if there is none.
  now(name) {
    return this.recent[name].findLast((value) => value != null) ?? null;
  }

  // The bound that was kept least in the last minute, or in the run if no window ended; null without any.
  get worstBound() {
    const share = (bound) => bound.minute ?? bound.run ?? 2;
    return this.bounds.reduce((a, b) => (a && share(a) <= share(b) ? a : b), null);
  }

  // The median input rate of the time shown: what is usual.
  get usualRate() {
    const known = this.series.rate.filter((rate) => rate != null && rate > 0).sort((a, b) => a - b);
    return known.length ? known[Math.floor(known.length / 2)] : null;
  }
}

// All bounds of an SLA. `name` is that of the bound's columns in the series.
export function boundsOf(sla) {
  if (!sla) return [];
  return [sla, ...(sla.more ?? [])].map(({ latency_ms: limit, window_ms: window, p99 = false, step = null }) => {
    const figure = p99 ? "p99" : "mean";
    return { name: step == null ? figure : `${figure} of ${step}`, p99, step, limit, window };
  });
}

// For each point, the share of a bound's windows that were kept in the minute before.
export function rollingSuccess(series, bound) {
  const times = series.time_ms, windows = series[`windows:${bound}`], kept = series[`kept:${bound}`];
  if (!windows) return times.map(() => null);
  let first = 0, judged = 0, good = 0, last = null;
  return times.map((ms, at) => {
    judged += windows[at];
    good += kept[at];
    while (first < at && times[first] <= ms - MINUTE_MS) {
      judged -= windows[first];
      good -= kept[first];
      first += 1;
    }
    if (judged) last = good / judged;
    return last;
  });
}

// The points of a series after a time.
function after(series, ms) {
  const first = series.time_ms.findIndex((time) => time > ms);
  const cut = ([name, column]) => [name, first < 0 ? [] : column.slice(first)];
  return Object.fromEntries(Object.entries(series).map(cut));
}

function nameOfMark(mark) {
  return [mark.time_ms, mark.kind, mark.step, mark.text].join("|");
}

// Columns may begin or end with the points, such as those of a bound that is set while the query runs.
function append(series, more, sinceMs) {
  const before = series.time_ms.length, now = more.time_ms.length;
  for (const name of new Set([...Object.keys(series), ...Object.keys(more)])) {
    const column = (series[name] ??= new Array(before).fill(null));
    column.push(...(more[name] ?? new Array(now).fill(null)));
  }
  const old = series.time_ms.findIndex((ms) => ms >= sinceMs);
  if (old > 0) for (const column of Object.values(series)) column.splice(0, old);
}

function total(column) {
  return column.reduce((sum, value) => sum + (value ?? 0), 0);
}
