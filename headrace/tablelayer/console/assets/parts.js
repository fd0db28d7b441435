// Pieces of pages. Foreign values become text: nothing here turns strings into markup.

export function h(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "value" || key === "checked") made[key] = value;
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.flat(9).filter((each) => each !== null && each !== undefined && each !== false));
  return made;
}

export async function ask(path, options) {
  const answer = await fetch(path, options);
  let found;
  try { found = await answer.json(); } catch { found = { error: `${answer.status} ${answer.statusText}` }; }
  if (!answer.ok) throw new Error(found.error || `${answer.status} ${answer.statusText}`);
  return found;
}

// A body that is a text is JSON already: its numbers keep all their digits.
export const send = (path, body, method = "POST", signal = null) =>
  ask(path, { method, headers: { "content-type": "application/json" }, body: typeof body === "string" ? body : JSON.stringify(body), signal });

// Returns a function for the beginning of each run. It stops the run before, whose answer is not wanted any more, and
// returns the signal of the new one: `signal.aborted` is true as soon as another run has begun.
export function newest() {
  let last = null;
  const begin = () => { if (last) last.abort(); last = new AbortController(); return last.signal; };
  begin.stop = () => { if (last) last.abort(); };
  begin.current = () => last && last.signal;
  return begin;
}

export const part = encodeURIComponent;
export const query = (values) => {
  const set = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return set.length ? `?${new URLSearchParams(set)}` : "";
};

export function count(value) {
  if (value === null || value === undefined || value < 0) return "–";
  return new Intl.NumberFormat("en").format(Math.round(value * 10) / 10);
}

export const counted = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

export function size(bytes) {
  if (bytes === null || bytes === undefined || bytes < 0) return "–";
  let unit = 0;
  while (bytes >= 1024 && unit < 5) { bytes /= 1024; unit += 1; }
  return `${unit && bytes < 100 ? bytes.toFixed(1) : Math.round(bytes)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
}

export function span(ms) {
  if (ms === null || ms === undefined || ms < 0) return "–";
  for (const [most, unit] of [[86400000, "d"], [3600000, "h"], [60000, "min"]])
    if (ms >= 2 * most) return `${Math.floor(ms / most)} ${unit}`;
  return `${Math.round(ms / 1000)} s`;
}

export const moment = (ms) => (ms === null || ms === undefined || ms < 0 ? "–" : new Date(ms).toISOString().replace("T", " ").replace("Z", ""));

export const failure = (error) => h("p", { class: "error", role: "alert" }, error.message || String(error));

// columns: [title, (row) => text or node, "number" | "code" | ""]
export function grid(columns, rows, label) {
  if (!rows.length) return h("p", { class: "soft" }, "Nothing here.");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label || "Table" },
    h("table", {},
      h("thead", {}, h("tr", {}, columns.map(([title, , kind]) => h("th", { scope: "col", class: kind || null }, title)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, columns.map(([, cell, kind]) => {
        const value = cell(row);
        return value === null || value === undefined
          ? h("td", { class: "null" }, "null")
          : h("td", { class: kind || null }, value instanceof Node || Array.isArray(value) ? value : String(value));
      }))))));
}

export const shown = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : value);

export function rowsGrid(found, label) {
  const columns = found.columns.map((column, index) => [column.name, (row) => shown(row[index]),
    /^(u?int|float|double|decimal)/.test(column.type) ? "number" : "code"]);
  return grid(columns, found.rows, label);
}

const SVG = "http://www.w3.org/2000/svg";
function s(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// points: [[x, y]] in order of x
export function plot(title, points, format, label) {
  const width = 400, height = 140, left = 56, bottom = 18;
  const picture = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "plot", role: "img", "aria-label": `${title}: ${points.length ? format(points.at(-1)[1]) : "no values yet"}` });
  if (points.length > 1) {
    const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
    const least = xs[0], most = xs.at(-1) === least ? least + 1 : xs.at(-1), top = Math.max(...ys, 1e-9) * 1.05;
    const at = ([x, y]) => `${(left + ((x - least) / (most - least)) * (width - left - 4)).toFixed(1)},${(height - bottom - (y / top) * (height - bottom - 8)).toFixed(1)}`;
    const line = points.map(at).join(" ");
    for (const part of [0, 0.5, 1]) {
      const y = height - bottom - part * (height - bottom - 8);
      picture.append(s("line", { class: "axis", x1: left, x2: width, y1: y, y2: y }),
        s("text", { x: left - 4, y: y + 3, "text-anchor": "end" }, format(top * part)));
    }
    picture.append(s("polygon", { class: "area", points: `${at([least, 0])} ${line} ${at([most, 0])}` }), s("polyline", { class: "line", points: line }),
      s("text", { x: left, y: height - 4 }, label(least)), s("text", { x: width, y: height - 4, "text-anchor": "end" }, label(most)));
  }
  return h("section", {}, h("h2", {}, title), points.length > 1 ? picture : h("p", { class: "soft" }, "Collecting: the plot begins in a few seconds."));
}

// pairs: [[name, number]]
export function bars(title, pairs) {
  const most = Math.max(...pairs.map(([, value]) => value), 1e-9), step = 20, width = 400;
  const picture = s("svg", { viewBox: `0 0 ${width} ${pairs.length * step}`, class: "plot", role: "img", "aria-label": title });
  pairs.forEach(([name, value], index) => {
    const y = index * step, long = Math.max(0, (value / most) * 220);
    picture.append(s("text", { x: 96, y: y + 13, "text-anchor": "end" }, String(name).slice(0, 18)),
      s("rect", { class: "bar", x: 100, y: y + 3, width: long, height: step - 6 }), s("text", { x: 104 + long, y: y + 13 }, count(value)));
  });
  return picture;
}

export function field(title, input, kind) {
  return h("label", { class: kind || null }, kind === "check" ? [input, title] : [title, input]);
}

export function tabs(base, names, current) {
  return h("div", { class: "tabs", role: "navigation", "aria-label": "Parts of the page" },
    names.map(([key, title]) => h("a", { href: `${base}/${key}`, "aria-current": key === current ? "page" : null }, title)));
}
