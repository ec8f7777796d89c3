// What the page knows: the series of the time shown, the last two minutes in full, totals, marks and moves.

const RECENT_MS = 120_000;
const MINUTE_MS = 60_000;

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

  // Takes in what happened. `sinceMs` is the begin of the time shown; older points are dropped.
  take(news, sinceMs) {
    append(this.series, news.series, sinceMs);
    append(this.recent, news.series, this.endedMs - RECENT_MS);
    for (const name of ["windows", "kept", "rows", "moved", "fetched"]) {
      this.totals[name] += total(news.series[name]);
    }
    this.moment = news.moment ?? this.moment;
    this.endedMs = this.moment?.time_ms ?? this.endedMs;
    this.begunMs ??= this.endedMs;
    this.marks = this.marks.concat(news.marks);
    this.moves = this.moves.concat(news.moves).slice(-200);
    this.journal = news.journal ?? this.journal;
  }

  get points() {
    return this.series.time_ms.length;
  }

  // The newest value of a figure in the last two minutes; null if there is none.
  now(name) {
    return this.recent[name].findLast((value) => value != null) ?? null;
  }

  // Share of the SLA's windows of the last minute that were kept; null without any.
  get minuteSuccess() {
    const shares = rollingSuccess(this.recent);
    return shares[shares.length - 1] ?? null;
  }

  get runSuccess() {
    return this.totals.windows ? this.totals.kept / this.totals.windows : null;
  }

  // The median input rate of the time shown: what is usual.
  get usualRate() {
    const known = this.series.rate.filter((rate) => rate != null && rate > 0).sort((a, b) => a - b);
    return known.length ? known[Math.floor(known.length / 2)] : null;
  }
}

export function rollingSuccess(series) {
  const { time_ms: times, windows, kept } = series;
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

function append(series, more, sinceMs) {
  for (const [name, column] of Object.entries(more)) series[name]?.push(...column);
  const old = series.time_ms.findIndex((ms) => ms >= sinceMs);
  if (old > 0) for (const column of Object.values(series)) column.splice(0, old);
}

function total(column) {
  return column.reduce((sum, value) => sum + (value ?? 0), 0);
}
