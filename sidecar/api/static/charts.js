// Bars over time, drawn by uPlot, each with a sentence and a table that say the same.

/* global uPlot */
import { el, say } from "./dom.js";
import { count } from "./format.js";

const HEIGHT = 112;

/** One chart in its figure. */
export class Bars {
  /**
   * @param {string} title what is counted
   * @param {string} tone the CSS class that colours it
   * @param {string} unit how a bar's figure is read, as in "12 fired"
   */
  constructor(title, tone, unit) {
    this.unit = unit;
    this.title = title;
    this.bars = [];
    this.note = "";
    this.sum = el("span", { class: "sum" }, "–");
    this.read = el("span", { class: "read soft", "aria-hidden": "true" });
    this.canvas = el("div", { class: `canvas ${tone}`, role: "img", "aria-label": `${title}: not known yet` });
    this.body = el("tbody");
    const table = el(
      "table",
      {},
      el("caption", { class: "hidden" }, title),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "When"), el("th", { scope: "col", class: "number" }, unit))),
      this.body,
    );
    this.details = el("details", { ontoggle: () => this.fillTable() }, el("summary", {}, "As a table"), table);
    this.root = el(
      "figure",
      {},
      el("figcaption", {}, el("span", { class: "name" }, title), this.sum, this.read),
      this.canvas,
      this.details,
    );
    new ResizeObserver(() => this.fit()).observe(this.canvas);
  }

  /**
   * Show these bars.
   * @param {{label: string, short: string, count: number}[]} bars in order of time; `short` stands at the axis
   * @param {string} note what stands beside the sum while no bar is pointed at
   */
  show(bars, note = "") {
    this.bars = bars;
    this.note = note;
    const total = bars.reduce((sum, bar) => sum + bar.count, 0);
    say(this.sum, count(total));
    const most = bars.reduce((best, bar) => (bar.count > best.count ? bar : best), bars[0]);
    const peak = total ? `; most ${most.label}: ${count(most.count)}` : "";
    this.canvas.setAttribute("aria-label", `${this.title}: ${count(total)}${peak}${note ? `; ${note}` : ""}`);
    const data = [bars.map((_, at) => at), bars.map((bar) => bar.count)];
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(), data, this.canvas);
    this.point(this.plot.posToVal(this.plot.cursor.left, "x"), this.plot.cursor.left);
    if (this.details.open) this.fillTable();
  }

  redraw() {
    this.plot?.redraw(false);
  }

  fit() {
    const width = this.canvas.clientWidth;
    if (this.plot && width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  fillTable() {
    const rows = this.bars.filter((bar) => bar.count);
    this.body.replaceChildren(
      ...(rows.length ? rows : [{ label: "at no time", count: 0 }]).map((bar) =>
        el("tr", {}, el("th", { scope: "row" }, bar.label), el("td", { class: "number" }, count(bar.count))),
      ),
    );
  }

  options() {
    const resolved = (name) => {
      // light-dark() is resolved by `color` alone.
      this.probe ??= this.canvas.appendChild(el("i", { hidden: true }));
      this.probe.style.color = `var(${name})`;
      return getComputedStyle(this.probe).color;
    };
    const axis = {
      stroke: () => resolved("--soft"),
      font: `11px ${getComputedStyle(document.body).fontFamily}`,
      ticks: { show: false },
      gap: 4,
    };
    return {
      width: this.canvas.clientWidth || 300,
      height: HEIGHT,
      padding: [8, 10, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      hooks: { setCursor: [(plot) => this.point(plot.posToVal(plot.cursor.left, "x"), plot.cursor.left)] },
      scales: {
        x: { time: false, range: () => [0, this.bars.length] },
        y: { range: (_, _low, high) => [0, Math.max(4, high * 1.08)] },
      },
      axes: [
        {
          ...axis,
          size: 22,
          grid: { show: false },
          splits: () => this.places(),
          values: (_, places) => places.map((place) => this.bars[place]?.short ?? ""),
        },
        {
          ...axis,
          size: (_, values) => 12 + 7 * Math.max(1, ...(values ?? []).map((value) => value.length)),
          space: 26,
          incrs: [1, 2, 5].flatMap((digit) => Array.from({ length: 12 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b),
          grid: { stroke: () => resolved("--line"), width: 1 },
          values: (_, places) => places.map(short),
        },
      ],
      series: [
        {},
        {
          fill: () => getComputedStyle(this.canvas).color,
          stroke: "transparent",
          width: 0,
          points: { show: false },
          paths: uPlot.paths.bars({ size: [1, 40], gap: 1, align: 1 }),
        },
      ],
    };
  }

  places() {
    const labels = this.bars.length % 4 ? 3 : 4;
    return Array.from({ length: labels }, (_, at) => (at * this.bars.length) / labels);
  }

  point(place, left) {
    const bar = left >= 0 ? this.bars[Math.floor(place)] : undefined;
    say(this.read, bar ? `${bar.label}: ${count(bar.count)}` : this.note);
  }
}

function short(number) {
  if (number >= 1e9) return `${number / 1e9}G`;
  if (number >= 1e6) return `${number / 1e6}M`;
  return number >= 1e4 ? `${number / 1e3}k` : String(number);
}
