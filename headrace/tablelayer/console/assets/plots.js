// Line and bar plots by uPlot, in the colours of the page, with the values under the pointer below them.
import uPlot from "./vendor/uplot.js";
import { ask, count, failure, h, newest, onLeave, query } from "./parts.js";

const COLORS = 6;
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const two = (number) => String(number).padStart(2, "0");
const TICKS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...Array.from({ length: 16 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** power)).flat()];
const BINARY = Array.from({ length: 56 }, (_, power) => 2 ** power);

// The text of a moment on an axis or below the pointer, in UTC. `step` is the distance of two ticks, in seconds.
export function clock(seconds, step = 1) {
  const at = new Date(seconds * 1000), day = at.toISOString().slice(0, 10);
  if (step >= 86400) return day;
  const time = `${two(at.getUTCHours())}:${two(at.getUTCMinutes())}`;
  return step < 60 ? `${time}:${two(at.getUTCSeconds())}` : time;
}

// Draws into a new element. `span` () is the range of the axis, if it is not that of the numbers. `x`: numbers in order, those of `names` if there are any; seconds since 1970 if `time`.
// `series`: [{ label, values }]. `by` says what `x` is.
export function chart({ title, x, series, kind = "line", time = false, names = null, by = "", format = count, binary = false, height = 200, span = null }) {
  const place = h("div", { class: "chart", role: "img", "aria-label": title });
  const label = (index) => (names ? String(names[index] ?? "") : time ? clock(x[index]) : count(x[index]));
  const long = names ? Math.min(18, Math.max(...names.map((each) => String(each).length))) : 0;
  // The point under the pointer; without one, the newest of a plot over time.
  const seen = (plot, index) => index ?? (time ? plot.data[0].length - 1 : null);
  const axis = { stroke: () => colour("--soft"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { stroke: () => colour("--line"), width: 1, size: 4 }, font: "12px system-ui, sans-serif" };
  const grouped = kind === "bar" ? series.length : 0, wide = 0.8 / Math.max(grouped, 1);
  const paths = (index) => (kind === "bar" ? uPlot.paths.bars({ disp: {
    x0: { unit: 1, values: (plot) => plot.data[0].map((at) => at - 0.4 + index * wide) }, size: { unit: 1, values: (plot) => plot.data[0].map(() => wide) } } }) : undefined);
  const least = Math.min(0, ...series.map((each) => each.values.reduce((found, value) => (value === null ? found : Math.min(found, value)), 0)));
  const options = (width) => ({
    width, height: height + long * 4, legend: { live: true },
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
    cursor: { y: false, points: { size: 7 } },
    scales: { x: { time, ...(span ? { range: () => span() } : {}), ...(names ? { range: [-0.6, names.length - 0.4] } : {}) }, y: { range: (_, low, high) => (least < 0 ? uPlot.rangeNum(low, high, 0.1, true) : [0, high > 0 ? high * 1.08 : 1]) } },
    series: [{ label: time ? "time (UTC)" : by, value: (plot, _, __, index) => { const at = seen(plot, index); return at === null ? "–" : time ? `${new Date(plot.data[0][at] * 1000).toISOString().slice(0, 10)} ${clock(plot.data[0][at])}` : label(at); } },
      ...series.map((each, index) => ({ label: each.label, stroke: () => colour(`--plot-${index % COLORS}`), fill: kind === "bar" ? () => colour(`--plot-${index % COLORS}`) : series.length === 1 ? () => `${colour("--plot-0")}22` : undefined,
        width: kind === "bar" ? 0 : 1.6, paths: paths(index), points: { show: kind !== "bar" && x.length === 1 }, spanGaps: false, value: (plot, _, side, index) => { const value = plot.data[side][seen(plot, index)]; return value === null || value === undefined ? "–" : format(value); } }))],
    axes: [{ ...axis, space: names ? 30 : 70, incrs: names ? TICKS.filter((each) => each >= 1) : undefined, rotate: long > 5 ? -40 : 0, size: names ? 28 + (long > 5 ? long * 5 : 0) : 30,
      values: (_, ticks, __, ___, step) => ticks.map((tick) => (names ? (Number.isInteger(tick) ? label(tick).slice(0, 18) : "") : time ? clock(tick, step) : format(tick))) },
    { ...axis, space: 24, incrs: binary ? BINARY : TICKS, size: (_, values) => 14 + 7 * Math.max(4, ...(values || []).map((each) => each.length)), values: (_, ticks) => ticks.map(format) }],
  });
  let plot = null;
  const resized = new ResizeObserver(([entry]) => {
    const width = Math.floor(entry.contentRect.width);
    if (!width) return;
    if (plot) plot.setSize({ width, height: height + long * 4 });
    else plot = new uPlot(options(width), [x, ...series.map((each) => each.values)], place);
  });
  const again = () => { if (plot) plot.redraw(true, true); };
  resized.observe(place);
  addEventListener("themed", again);
  const end = () => { resized.disconnect(); removeEventListener("themed", again); if (plot) { plot.destroy(); plot = null; } };
  onLeave(end);
  return { element: place, set: (data) => { if (plot) { plot.setData(data); if (plot.cursor.idx === null) plot.setLegend({ idx: null }, false); } }, end };
}

// Numbers of the past with a choice of the length of time, drawn again while the page is open.
// `plots`: [title, field, format, binary, kind], where the kind of thing is `of` if it is left out.
const RANGES = [[15, "15 min"], [60, "1 h"], [1440, "24 h"]];
let minutes = 60;

export function plotsOf(of, name, plots) {
  const places = plots.map(([title]) => h("section", {}, h("h2", {}, title))), made = plots.map(() => null), begin = newest();
  const trouble = h("div", {}), soft = "There are not two values of this time yet. One is measured every 5 seconds.";
  let span = [0, 1], timer = null;
  const set = (index, x, values) => {
    const [title, , format, binary] = plots[index], data = [x, values];
    if (x.length < 2) { if (!made[index]) places[index].replaceChildren(h("h2", {}, title), h("p", { class: "soft" }, soft)); return; }
    if (made[index]) { made[index].set(data); return; }
    made[index] = chart({ title: `${title}: ${format(values.at(-1))}`, x, series: [{ label: title.length > 30 ? "value" : title, values }], time: true, format, binary, height: 150, span: () => span });
    places[index].replaceChildren(h("h2", {}, title), made[index].element);
  };
  const fill = async () => {
    clearTimeout(timer);
    const signal = begin();
    try {
      const kinds = [...new Set(plots.map((each) => each[4] ?? of))];
      const found = new Map(await Promise.all(kinds.map(async (kind) => [kind, await ask(`/api/plots${query({ of: kind, name, minutes })}`, { signal })])));
      if (signal.aborted) return;
      const [first] = found.values();
      span = [first.begin_ms / 1000, first.end_ms / 1000];
      const gap = minutes > 60 ? 200 : 50;
      plots.forEach(([, field, , , kind = of], index) => {
        const x = [], values = [];
        for (const point of found.get(kind).points) {
          if (point[field] === null) continue;
          const at = point.time_ms / 1000;
          if (x.length && at - x.at(-1) > gap) { x.push(x.at(-1) + 1); values.push(null); } // nothing was known meanwhile
          x.push(at); values.push(point[field]);
        }
        set(index, x, values);
      });
      trouble.replaceChildren();
    } catch (error) { if (signal.aborted) return; trouble.replaceChildren(failure(error)); }
    timer = setTimeout(fill, minutes > 60 ? 60000 : 5000);
  };
  const choose = h("div", { class: "pager", role: "group", "aria-label": "Length of time" }, RANGES.map(([value, title]) => h("button", { type: "button", "data-minutes": value, onclick: () => { minutes = value; mark(); fill(); } }, title)));
  const mark = () => { for (const each of choose.children) each.setAttribute("aria-pressed", String(Number(each.dataset.minutes) === minutes)); };
  mark();
  fill();
  onLeave(() => { begin.stop(); clearTimeout(timer); });
  return h("div", { class: "past" }, choose, trouble, h("div", { class: "plots" }, places));
}
