// The page: loads the recording, draws it, and follows the query.

import { Charts } from "./charts.js";
import { ControlPanel, WhatIfPanel } from "./control.js";
import { clock } from "./format.js";
import { drawHotKeys, drawJournal, drawMoves } from "./lists.js";
import { Model } from "./model.js";
import { SlotMap } from "./slot_map.js";
import { openSource } from "./source.js";
import { drawTop } from "./tiles.js";

const POINTS = 600;
const MOST_POINTS = 2 * POINTS;
const find = (id) => document.getElementById(id);

class Page {
  constructor(source) {
    this.source = source;
    this.range = source.kept ? "all" : "600";
    this.zoom = null;
    this.past = null;
    this.map = new SlotMap(find("map"), find("map-legend"), (step, slot) => this.control.pick(step, slot));
  }

  async start() {
    this.model = new Model(await this.load());
    this.charts = new Charts(this.model, { hovered: (ms) => this.look(ms), zoomed: (from, to) => this.zoomTo(from, to) });
    this.control = new ControlPanel(find("control"), this.source, this.model);
    this.whatIf = new WhatIfPanel(find("what-if"), this.source);
    this.listen();
    try {
      this.draw();
    } catch (failed) {
      trouble(`A part of the page cannot be shown: ${failed.message}`);
    }
    if (this.model.running) this.follow();
  }

  load() {
    if (this.zoom) return this.source.recording(this.zoom[0] * 1000, this.zoom[1] * 1000, POINTS);
    return this.source.recording(this.range === "all" ? 0 : -1000 * this.range, undefined, POINTS);
  }

  async reload() {
    try {
      const next = new Model(await this.load());
      this.model = this.charts.model = next;
      this.draw();
    } catch (failed) {
      trouble(`The recording cannot be read: ${failed.message}`);
    }
  }

  follow() {
    this.source.follow(this.model.endedMs ?? 0, {
      news: (news) => this.take(news),
      end: () => {
        this.model.running = false;
        this.draw();
        announce("The query has ended.");
      },
      lost: () => trouble("Connection lost: the page shows the last known state, and tries again."),
      found: () => trouble(""),
    });
  }

  take(news) {
    const known = new Set(this.model.journal.map((item) => item.time_ms));
    const shown = this.zoom ? { time_ms: [] } : news.series;
    this.model.take(news, shown, this.sinceMs);
    const fresh = (news.journal ?? []).filter((item) => item.important && !known.has(item.time_ms));
    if (fresh.length) announce(fresh.map((item) => item.text).join(". "));
    if (this.model.points > MOST_POINTS) this.reload();
    else this.draw();
  }

  get sinceMs() {
    return this.range === "all" ? 0 : this.model.endedMs - 1000 * this.range;
  }

  get span() {
    if (this.zoom) return this.zoom;
    const { begunMs, endedMs } = this.model;
    if (endedMs == null) return null;
    const from = this.range === "all" ? begunMs : Math.max(begunMs, endedMs - 1000 * this.range);
    return [from / 1000, Math.max(endedMs / 1000, from / 1000 + 10)];
  }

  draw() {
    const { model } = this;
    drawTop(model);
    this.charts.update(this.span);
    if (model.moment && this.past == null) this.drawMap(model.moment, true);
    drawMoves(find("moves"), model.moves);
    this.drawJournal();
    this.control.update(model);
    document.body.dataset.ready = "true";
  }

  drawMap(moment, animate) {
    this.map.draw(moment, animate);
    drawHotKeys(find("hot"), find("hot-keys"), moment.steps);
    find("map-time").textContent = this.past == null ? (this.model.running ? "now" : `at ${clock(moment.time_ms)}`) : `at ${clock(moment.time_ms)}`;
  }

  drawJournal() {
    const wanted = `${find("important").checked} ${this.model.journal.length} ${this.model.journal.at(-1)?.text}`;
    if (wanted === this.drawnJournal) return;
    this.drawnJournal = wanted;
    drawJournal(find("journal"), this.model.journal, find("important").checked);
  }

  // Show the map at a time that the pointer is over; at null, the newest again.
  look(ms) {
    if (ms === this.past) return;
    this.past = ms;
    clearTimeout(this.looking);
    if (ms == null) {
      if (this.model.moment) this.drawMap(this.model.moment, false);
      return;
    }
    this.looking = setTimeout(async () => {
      const moment = await this.source.momentAt(ms).catch(() => null);
      if (moment && this.past === ms) this.drawMap(moment, false);
    }, 60);
  }

  zoomTo(from, to) {
    this.zoom = [from, to];
    find("unzoom").hidden = false;
    this.reload();
  }

  listen() {
    for (const input of find("ranges").elements) {
      input.checked = input.value === this.range;
      input.addEventListener("change", () => {
        this.range = input.value;
        this.unzoom();
      });
    }
    find("unzoom").addEventListener("click", () => this.unzoom());
    find("important").addEventListener("change", () => this.drawJournal());
    find("theme").addEventListener("click", () => {
      setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
      this.charts.build();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      setTheme(null);
      this.charts.build();
    });
  }

  unzoom() {
    this.zoom = null;
    find("unzoom").hidden = true;
    this.reload();
  }
}

function setTheme(chosen) {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  document.documentElement.dataset.theme = chosen ?? system;
}

function trouble(text) {
  find("trouble").textContent = text;
  find("trouble").hidden = !text;
}

function announce(text) {
  find("news").textContent = text;
}

setTheme(null);
new Page(openSource()).start().catch((failed) => trouble(`The page cannot be shown: ${failed.message}`));
