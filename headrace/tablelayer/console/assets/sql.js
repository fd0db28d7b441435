// The SQL page: the editor, tables and columns beside it, results in pages, charts, plans, history.
import { ask, counted, download, failure, field, h, isNumeric, moment, newest, onLeave, rowsGrid, send, shown } from "./parts.js";

const HISTORY = "headrace.queries", HISTORY_MAX = 50, BARS_MAX = 60, TABLES_SHOWN = 200;
const TOPIC_COLUMNS = [["partition", "INT"], ["offset", "BIGINT"], ["timestamp", "TIMESTAMP_LTZ(3)"], ["key", "STRING"], ["value", "STRING"], ["headers", "LIST"], ["json", "STRING"],
  ["key_bytes", "BYTES"], ["value_bytes", "BYTES"]];
let lastQuery = "";

function remembered() {
  try { const found = JSON.parse(localStorage.getItem(HISTORY)); return Array.isArray(found) ? found : []; } catch { return []; }
}
function remember(query, outcome) {
  const rest = remembered().filter((each) => each.query !== query);
  try { localStorage.setItem(HISTORY, JSON.stringify([{ query, outcome, time_ms: Date.now() }, ...rest].slice(0, HISTORY_MAX))); } catch { /* it is not kept */ }
}

const named = (name) => (/^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

export async function sql() {
  const { makeEditor } = await import("./editor.js");
  const result = h("div", { "aria-live": "polite" }), begin = newest();
  const cancel = h("button", { type: "button", disabled: true, onclick: () => begin.stop() }, "Cancel");
  const editor = makeEditor({ label: "Query", hint: "SELECT name, count(*) FROM fruit GROUP BY name", text: lastQuery, run: () => run() });
  const past = h("div", {}), tables = h("div", {}, h("p", { class: "soft" }, "Loading …"));

  async function answered(path, draw) {
    const signal = begin(), query = lastQuery = editor.text;
    cancel.disabled = false;
    result.replaceChildren(h("p", { class: "soft loading" }, "Running …"));
    try {
      const found = await send(path, { query }, "POST", signal);
      if (signal.aborted) return;
      result.replaceChildren(...await draw(found));
      if (found.rows) { remember(query, `${counted(found.rows.length, "row")} in ${found.ms} ms`); history(); }
    } catch (error) {
      if (begin.current() !== signal) return;
      if (!signal.aborted) { remember(query, "failed"); history(); }
      result.replaceChildren(signal.aborted ? h("p", { class: "soft" }, "Cancelled.") : h("pre", { class: "error", role: "alert" }, error.message));
    }
    if (begin.current() === signal) cancel.disabled = true;
  }
  const run = () => answered("/api/sql", rows);
  const plan = () => answered("/api/sql/plan", ({ plan: found }) => [h("section", {}, h("h2", {}, "Plan"), h("ul", { class: "tree" }, node(found)))]);

  function history() {
    const found = remembered();
    const clear = h("button", { type: "button", onclick: () => { try { localStorage.removeItem(HISTORY); } catch { /* nothing was kept */ } history(); } }, "Clear");
    past.replaceChildren(h("details", {}, h("summary", {}, `History (${found.length})`), found.length
      ? [h("ol", { class: "history" }, found.map((each) => h("li", {}, h("button", { type: "button", class: "plain mono", onclick: () => { editor.text = each.query; } }, each.query.slice(0, 300)),
        h("span", { class: "soft" }, ` ${each.outcome}, ${moment(each.time_ms).slice(0, 19)} UTC`)))), clear] : h("p", { class: "soft" }, "Queries that you run are kept here, in this browser only.")));
  }
  history();
  beside(tables, editor).catch((error) => tables.replaceChildren(failure(error)));
  onLeave(() => { begin.stop(); lastQuery = editor.text; editor.end(); });
  return [h("h1", {}, "SQL"), h("div", { class: "beside" }, h("section", {},
    h("form", { onsubmit: (event) => { event.preventDefault(); run(); } }, h("div", { class: "wide" }, h("p", { class: "soft" }, "One SELECT over tables and topics. Ctrl+Enter runs it, Ctrl+Space completes."), editor.element),
      h("button", { class: "main", type: "submit" }, "Run"), h("button", { type: "button", onclick: plan }, "Plan"), cancel), past),
  h("section", { class: "tables" }, h("h2", {}, "Tables and topics"), tables)), result];
}

// The tables and topics with their columns, as a list and for completion.
async function beside(place, editor) {
  const [columns, topics] = await Promise.all([send("/api/sql", { query: "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns ORDER BY table_schema, table_name, ordinal_position" }), ask("/api/topics")]);
  const found = new Map(), schema = {};
  for (const [database, table, column, type] of columns.rows) {
    const name = database === "default" ? named(table) : `${named(database)}.${named(table)}`;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push([column, type]);
    (schema[database] ??= {})[table] ??= [];
    schema[database][table].push({ label: column, apply: named(column), detail: type, type: "property" });
  }
  for (const each of topics.topics.filter((one) => !one.table)) {
    found.set(named(each.name), TOPIC_COLUMNS);
    (schema.default ??= {})[each.name] = TOPIC_COLUMNS.map(([column, type]) => ({ label: column, apply: named(column), detail: type, type: "property" }));
  }
  editor.tables(schema);
  const list = h("ul", { class: "names" }), input = h("input", { type: "search", oninput: () => draw() });
  const put = (words, title) => h("button", { type: "button", class: "plain mono", title: `Insert ${words}`, onclick: () => editor.insert(words) }, title);
  const draw = () => {
    const chosen = [...found].filter(([name]) => name.includes(input.value));
    list.replaceChildren(...chosen.slice(0, TABLES_SHOWN).map(([name, of]) => {
      const made = h("details", { ontoggle: () => { if (made.open && made.childElementCount === 1) made.append(put(name, `Insert ${name}`), h("ul", {}, of.map(([column, type]) => h("li", {}, put(named(column), column), h("span", { class: "soft" }, ` ${type}`))))); } }, h("summary", { class: "mono" }, name));
      return h("li", {}, made);
    }), ...(chosen.length > TABLES_SHOWN ? [h("li", { class: "soft" }, `and ${chosen.length - TABLES_SHOWN} more: filter`)] : []));
  };
  draw();
  place.replaceChildren(...(found.size ? [found.size > 8 ? field("Filter", input) : "", list] : [h("p", { class: "soft" }, "There is no table yet. Create one with headrace sql, or write to a topic.")]));
}

const node = (found) => h("li", {}, h("b", {}, found.name), h("span", { class: "soft" }, Object.entries(found.details).map(([name, value]) => h("span", { class: "detail" }, `${name}: `, h("code", {}, value)))),
  found.children.length ? h("ul", {}, found.children.map(node)) : "");

async function rows(found) {
  const csv = () => [found.columns.map((each) => each.name), ...found.rows].map((row) => row.map((value) => {
    const text = value === null ? "" : String(shown(value));
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",")).join("\r\n");
  const saves = [h("button", { type: "button", onclick: () => download("result.csv", csv(), "text/csv") }, "Download CSV"),
    h("button", { type: "button", onclick: () => download("result.jsonl", found.rows.map((row) => `${JSON.stringify(Object.fromEntries(found.columns.map((each, index) => [each.name, row[index]])))}\n`).join(""), "application/x-ndjson") }, "Download JSON")];
  return [h("p", { class: "soft" }, `${counted(found.rows.length, "row")}${found.more ? " (there are more: add a LIMIT or a WHERE)" : ""} in ${found.ms} ms`),
    h("section", {}, rowsGrid(found, "Result", "The query has no row."), found.rows.length ? h("div", { class: "pager" }, saves) : ""), await charts(found)];
}

// A chart of chosen columns: one for the axis, one or more for the values.
async function charts(found) {
  const numeric = found.columns.map((each, index) => [each, index]).filter(([each]) => isNumeric(each));
  if (found.rows.length < 2 || found.columns.length < 2 || !numeric.length) return "";
  const { chart } = await import("./plots.js");
  const isTime = (index) => /^(timestamp|date)/.test(found.columns[index].type);
  const place = h("div", {}), start = numeric.at(-1)[1], first = start === 0 ? 1 : 0;
  const axis = h("select", { onchange: () => draw() }, found.columns.map((each, index) => h("option", { value: index }, each.name)));
  const kind = h("select", { onchange: () => draw() }, [["bar", "bars"], ["line", "a line"]].map(([value, title]) => h("option", { value }, title)));
  const boxes = numeric.map(([each, index]) => [index, h("input", { type: "checkbox", checked: index === start, onchange: () => draw() }), each.name]);
  axis.value = first;
  kind.value = isTime(first) || found.rows.length > BARS_MAX ? "line" : "bar";
  let made = null;
  const draw = () => {
    const at = Number(axis.value), chosen = boxes.filter(([, box]) => box.checked);
    if (made) made.end();
    if (!chosen.length) { made = null; place.replaceChildren(h("p", { class: "soft empty" }, "Choose a column of numbers.")); return; }
    const value = (each) => (each === null ? null : Number.isFinite(Number(each)) ? Number(each) : null);
    const isNumber = !isTime(at) && isNumeric(found.columns[at]), continuous = kind.value === "line" && (isTime(at) || isNumber);
    const position = (row) => (isTime(at) ? Date.parse(/[Z+]/.test(String(row[at])) ? row[at] : `${row[at]}${String(row[at]).length > 10 ? "Z" : ""}`) / 1000 : value(row[at]));
    const taken = continuous ? found.rows.filter((row) => row[at] !== null && Number.isFinite(position(row))).sort((one, other) => position(one) - position(other)) : kind.value === "bar" ? found.rows.slice(0, BARS_MAX) : found.rows;
    const title = `${chosen.map(([, , name]) => name).join(", ")} by ${found.columns[at].name}`;
    made = chart({ title, by: found.columns[at].name, kind: kind.value, time: continuous && isTime(at), names: continuous ? null : taken.map((row) => shown(row[at]) ?? "null"), x: taken.map((row, index) => (continuous ? position(row) : index)),
      series: chosen.map(([index, , name]) => ({ label: name, values: taken.map((row) => value(row[index])) })), height: 260 });
    place.replaceChildren(...(taken.length < found.rows.length ? [h("p", { class: "soft" }, `The first ${taken.length} rows.`)] : []), made.element);
  };
  draw();
  return h("section", {}, h("h2", {}, "Chart"), h("form", { onsubmit: (event) => event.preventDefault() }, field("As", kind), field("By", axis),
    h("fieldset", {}, h("legend", {}, "Values"), boxes.map(([, box, name]) => field(name, box, "check")))), place);
}
