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

// The answer of /api/about, filled in before the first page is shown.
export const about = { writes: false, version: "", server: "", registry: false, connect: false };

let leaving = [];
// Calls `act` when the page is left.
export const onLeave = (act) => { leaving.push(act); };
export function leave() { for (const act of leaving.splice(0)) act(); }

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

const cellOf = ([title, cell, kind], row) => {
  const value = cell(row);
  return value === null || value === undefined
    ? h("td", { class: `null ${kind || ""}`.trim(), role: "cell", "data-title": title }, "null")
    : h("td", { class: kind || null, role: "cell", "data-title": title }, value instanceof Node || Array.isArray(value) ? value : String(value));
};
export const cellsOf = (columns, row) => columns.map((column) => cellOf(column, row));

// columns: [title, (row) => text or node, "number" | "code" | "words" | "name" | "act" | "short" | ""]. A table of more than three columns, or with
// one of "words", "name" or "act", is a list of cards on a narrow page. `empty`: what to show and to do if there are no rows. `always`: the table, even without rows.
export function grid(columns, rows, label, { empty = "Nothing here.", always = false, headless = false } = {}) {
  if (!rows.length && !always) return h("p", { class: "soft empty" }, empty);
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label || "Table" },
    h("table", { class: columns.length > 3 || columns.some(([, , kind]) => ["words", "name", "act"].includes(kind)) ? "as-cards" : headless ? "facts" : null, role: "table" },
      headless ? "" : h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map(([title, , kind]) => h("th", { scope: "col", role: "columnheader", class: kind || null }, title)))),
      h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, cellsOf(columns, row))))));
}

// A summary that opens: `build` makes what is below it when it is opened for the first time.
export function unfolding(summary, build) {
  const made = h("details", { ontoggle: async () => { if (made.open && !made.dataset.built) { made.dataset.built = ""; made.append(...(await build()).flat(9)); } } }, h("summary", {}, summary));
  return made;
}

export const shown = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : value);

export const isNumeric = (column) => /^(u?int|float|double|decimal)/.test(column.type);

export function rowsGrid(found, label, empty = "No row.") {
  const columns = found.columns.map((column, index) => [column.name, (row) => shown(row[index]), isNumeric(column) ? "number" : "code"]);
  return listing(columns, found.rows, label, { empty, page: matchMedia("(max-width: 40rem)").matches ? 20 : 50 });
}

// A grid whose rows are sorted by its headers, shown `page` at a time and, with `filter`, chosen by a text. A fourth element
// of a column, (row) => value, is what it is sorted by. A column of the kind "act" has buttons, and is not sorted.
export function listing(columns, rows, label, { empty, filter = false, page = 100, sort = true } = {}) {
  if (!rows.length) return grid(columns, rows, label, { empty });
  let chosen = rows, at = 0, by = -1, descending = false;
  const place = h("div", {}), told = h("span", { class: "soft", role: "status" });
  const turn = (to, title) => h("button", { type: "button", onclick: () => { at = to(); draw(); } }, title);
  const back = turn(() => at - page, "Previous"), on = turn(() => at + page, "Next"), pager = h("div", { class: "pager" }, back, told, on);
  const value = (row) => { const [, cell, kind, raw] = columns[by]; const found = (raw || cell)(row); const text = found instanceof Node ? found.textContent : found;
    return kind === "number" && typeof text === "string" && text !== "" && !Number.isNaN(Number(text.replaceAll(",", ""))) ? Number(text.replaceAll(",", "")) : text; };
  const words = new Map();
  const wordsOf = (row) => { if (!words.has(row)) words.set(row, columns.map(([, cell]) => { const found = cell(row); return found instanceof Node ? found.textContent : found; }).join(" ").toLowerCase()); return words.get(row); };
  const input = h("input", { type: "search", oninput: () => { chosen = rows.filter((row) => wordsOf(row).includes(input.value.toLowerCase())); at = 0; arrange(); } });
  const arrange = () => {
    if (by >= 0) chosen = chosen.map((row) => [value(row), row]).sort(([one], [other]) => (one === other ? 0
      : one === null || one === undefined ? 1 : other === null || other === undefined ? -1
        : (typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true })) * (descending ? -1 : 1))).map(([, row]) => row);
    draw();
  };
  const draw = () => {
    const made = grid(columns, chosen.slice(at, at + page), label, { empty: "No row has this text. Change the filter." });
    if (sort) made.querySelectorAll("th").forEach((head, index) => {
      const title = head.textContent;
      if (!title || columns[index][2] === "act") return;
      if (index === by) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      head.replaceChildren(h("button", { type: "button", class: "sort", onclick: () => { descending = by === index && !descending; by = index; at = 0; arrange(); place.querySelectorAll("th")[index]?.querySelectorAll("button")[0]?.focus(); } }, title));
    });
    place.replaceChildren(made);
    back.disabled = at === 0; on.disabled = at + page >= chosen.length;
    pager.hidden = chosen.length <= page;
    told.textContent = `${count(at + 1)} to ${count(Math.min(at + page, chosen.length))} of ${count(chosen.length)}`;
  };
  draw();
  return h("div", {}, filter && rows.length > 5 ? h("form", { onsubmit: (event) => event.preventDefault() }, field("Filter", input)) : "", place, pager);
}

// A form whose action says what it did, or what is wrong. `act` returns the text.
export function acting(title, fields, button, act) {
  const said = h("div", { role: "status" });
  return h("section", {}, h("h2", {}, title), h("form", { "aria-label": title, onsubmit: async (event) => {
    event.preventDefault();
    try { said.replaceChildren(h("p", { class: "good" }, await act())); } catch (error) { said.replaceChildren(failure(error)); }
  } }, fields, h("button", { class: "main", type: "submit" }, button)), said);
}

// A button for what cannot be taken back: the second press acts. Escape, and leaving the button, take the first one back.
export function sure(title, act) {
  let asked = false;
  const turn = (on) => { asked = on; made.textContent = on ? `Really ${title.toLowerCase()}?` : title; };
  const made = h("button", { type: "button", onclick: () => { const is = asked; turn(!is); if (is) act(); }, onblur: () => turn(false), onkeydown: (event) => { if (event.key === "Escape") turn(false); } }, title);
  return made;
}

// A list of choices: texts, or pairs of a value and its title.
export const choice = (options, attributes) => h("select", attributes, options.map((each) => { const [value, title] = [each].flat(); return h("option", { value }, title ?? value); }));

// A text whose control characters, but tabs and line ends, are seen as their numbers.
export const visible = (text) => text.replace(/[\0-\x08\x0b-\x1f]/g, (each) => `\\x${each.charCodeAt(0).toString(16).padStart(2, "0")}`);

// JSON with line ends. Its numbers keep all their digits, where the browser can do that.
export function pretty(text) {
  const exact = (_, value, context) => (typeof value === "number" && context && JSON.rawJSON && String(value) !== context.source ? JSON.rawJSON(context.source) : value);
  try { return JSON.stringify(JSON.parse(text, exact), null, 2); } catch { return text; }
}

// Bytes as lines of 16: their place, their numbers, and those that are letters.
export function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    lines.push(`${at.toString(16).padStart(6, "0")}  ${part.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(47)}  ${part.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : ".")).join("")}`);
  }
  return lines.join("\n");
}

// Saves a text as a file of the reader's machine.
export function download(name, text, type) {
  const at = URL.createObjectURL(new Blob([text], { type }));
  h("a", { href: at, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(at), 10000);
}

export function field(title, input, kind) {
  return h("label", { class: kind || null }, kind === "check" ? [input, title] : [title, input]);
}

export function tabs(base, names, current) {
  return h("div", { class: "tabs", role: "navigation", "aria-label": "Parts of the page" },
    names.map(([key, title]) => h("a", { href: `${base}/${key}`, "aria-current": key === current ? "page" : null }, title)));
}
