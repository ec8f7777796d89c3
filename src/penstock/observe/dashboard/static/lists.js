// The lists: the journal, the last moves of slots, hot keys.

import { clock, compact, counted, element } from "./format.js";

const MOST = 200;

export function drawJournal(list, journal, importantOnly) {
  const shown = journal.filter((item) => item.important || !importantOnly).slice(-MOST).reverse();
  if (!shown.length) {
    const why = journal.length ? "Nothing important yet." : "No decisions yet. They appear here once autoscaling is on and has decided something.";
    list.replaceChildren(element("li", { class: "quiet" }, why));
    return;
  }
  list.replaceChildren(...shown.map((item) =>
    element("li", { data: { kind: item.kind, important: item.important } },
      element("time", { datetime: new Date(item.time_ms).toISOString() }, clock(item.time_ms)),
      element("span", { class: "kind" }, item.kind), element("span", { class: "quiet" }, item.step),
      element("p", {}, item.text))));
}

export function drawMoves(list, moves) {
  const shown = moves.slice(-MOST).reverse();
  if (!shown.length) {
    list.replaceChildren(element("li", { class: "quiet" }, "No slot has moved."));
    return;
  }
  list.replaceChildren(...shown.map((move) =>
    element("li", {},
      element("time", { datetime: new Date(move.time_ms).toISOString() }, clock(move.time_ms)),
      element("span", { class: "kind" }, move.why),
      element("p", {}, `${counted(move.count, "slot")} ${move.count <= 12 ? `(${move.slots})` : ""} from ${move.source ?? "the store"} to ${move.target}`))));
}

export function drawHotKeys(section, list, steps) {
  const keys = steps.flatMap((step) => step.hot_keys.map((key) => ({ step: step.step, ...key })));
  section.hidden = !keys.length;
  list.replaceChildren(...keys.map((key) =>
    element("li", {}, element("b", {}, key.key), ` in slot ${key.slot} of ${key.step}, ${compact(key.rate)} records/s: ${key.text}`)));
}
