// Draws the bars over time of the page of `spark report`; drag to look closer, double click to look at all.
"use strict";
const HEIGHT = 200;
const HOUR_S = 3600;
const plots = [];

/** The hour of an instant, or the day where one begins; UTC as everywhere. */
function label(at) {
  const text = new Date(at * 1000).toISOString();
  return text.slice(11, 13) === "00" ? text.slice(5, 10) : text.slice(11, 16);
}

for (const { kind, hours, counts } of JSON.parse(document.getElementById("data").textContent)) {
  const place = document.getElementById("hours-" + kind);
  if (!place || !hours.length) continue;
  const soft = document.querySelector(".soft");
  const axis = { stroke: () => getComputedStyle(soft).color, grid: { show: false }, ticks: { show: false } };
  const options = {
    width: place.clientWidth,
    height: HEIGHT,
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
    cursor: { y: false },
    scales: {
      x: { range: (_, first, last) => [first, Math.max(last, first + HOUR_S)] },
      y: { range: (_, low, high) => [0, Math.max(4, high * 1.08)] },
    },
    axes: [
      {
        ...axis,
        incrs: [1, 2, 4, 6, 12, 24, 48, 168, 336].map((hours) => hours * HOUR_S),
        values: (_, places) => places.map(label),
      },
      { ...axis, size: 70 },
    ],
    series: [
      { label: "hour", value: "{YYYY}-{MM}-{DD} {HH}:00" },
      {
        label: "count",
        fill: () => getComputedStyle(place).color,
        stroke: () => getComputedStyle(place).color,
        width: 0,
        points: { show: false },
        paths: uPlot.paths.bars({ size: [0.9, 40], align: 1 }),
      },
    ],
  };
  // The hour behind the last one gives its bar room.
  const plot = new uPlot(options, [[...hours, hours.at(-1) + HOUR_S], [...counts, null]], place);
  new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: HEIGHT })).observe(place);
  plots.push(plot);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach((each) => each.redraw(false)));
