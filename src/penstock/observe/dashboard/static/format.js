// Numbers, durations, sizes, money and times as people read them.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const NONE = "–";

export function count(value) {
  return value == null ? NONE : plain.format(value);
}

export function compact(value) {
  return value == null ? NONE : Math.abs(value) < 10_000 ? plain.format(value) : short.format(value);
}

export function duration(ms) {
  if (ms == null) return NONE;
  if (ms === 0) return "0 ms";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(ms < 10_000 ? 2 : 1).replace(/\.?0+$/, "")} s`;
  const minutes = Math.floor(ms / 60_000);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function bytes(value) {
  if (value == null) return NONE;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (value < 1000) return `${value < 10 && unit !== "B" ? value.toFixed(1) : Math.round(value)} ${unit}`;
    value /= 1000;
  }
  return `${value.toFixed(1)} TB`;
}

export function dollars(value) {
  if (value == null) return NONE;
  return `$${value < 1 ? value.toFixed(4) : value.toFixed(2)}`;
}

export function percent(share, digits = 0) {
  if (share == null) return NONE;
  // 99.96 % must not be shown as a perfect 100.
  const value = share < 1 ? Math.min(share * 100, 100 - 10 ** -digits) : 100;
  return `${value.toFixed(digits)} %`;
}

export function clock(ms) {
  return new Date(ms).toLocaleTimeString("en-GB");
}

export function counted(number, thing) {
  return `${count(number)} ${thing}${number === 1 ? "" : "s"}`;
}

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") made.className = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}
