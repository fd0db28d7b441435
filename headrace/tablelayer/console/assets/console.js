// The pages of the console, one for each first part of the address behind #.
import { ask, bars, count, counted, failure, field, grid, h, moment, newest, part, plot, query, rowsGrid, send, shown, size, span, tabs } from "./parts.js";

const main = document.getElementById("main");
let about = { writes: false, version: "", server: "" };
let leave = () => {};

const PAGES = [["", "Overview"], ["topics", "Topics"], ["tables", "Tables"], ["sql", "SQL"], ["groups", "Groups"],
  ["lake", "Lake"], ["refused", "Refused"], ["brokers", "Brokers"], ["users", "Users"]];

// -- overview ---------------------------------------------------------------------------------------------

async function overview() {
  const page = h("div", {});
  const fill = async () => {
    const found = await ask("/api/overview");
    const of = (name) => found.history.map((each) => [each.time_ms, each[name]]);
    const last = found.history.at(-1) || {};
    const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);
    const card = (title, value, kind) => h("div", { class: "card" }, h("b", { class: kind || null }, value), h("span", {}, title));
    page.replaceChildren(
      found.trouble ? failure(new Error(found.trouble)) : "",
      h("div", { class: "cards" },
        card("offline partitions", found.offline.length ? count(found.offline.length) : "none", found.offline.length ? "bad" : "good"),
        card("brokers", found.missing.length ? `${count(found.brokers)}, away: ${found.missing.join(", ")}` : count(found.brokers), found.missing.length ? "bad" : null),
        card("partitions not in sync", found.under_replicated ? count(found.under_replicated) : "none", found.under_replicated ? "bad" : "good"), card("topics", count(found.topics)), card("partitions", count(found.partitions)),
        card("records a second", count(last.records_per_second)), card("in logs", size(last.bytes)),
        card("refused records", count(found.refused), found.refused ? "bad" : null)),
      h("div", { class: "plots" },
        plot("Records written a second", of("records_per_second"), count, clock), plot("Bytes of logs", of("bytes"), size, clock),
        plot("CPU, % of one core", of("cpu_percent"), count, clock), plot("Memory of servers", of("memory_bytes"), size, clock)),
      found.offline.length ? h("section", {}, h("h2", {}, "Offline partitions"),
        grid([["topic", (each) => topicLink(each.topic)], ["partition", (each) => each.partition, "number"]], found.offline, "Offline partitions")) : "",
      h("section", {}, h("h2", {}, "Busiest topics"), grid([["topic", (each) => topicLink(each.topic)],
        ["records a second", (each) => count(each.records_per_second), "number"]], found.busiest, "Busiest topics")));
  };
  await fill();
  const timer = setInterval(() => fill().catch((error) => page.replaceChildren(failure(error))), 5000);
  leave = () => clearInterval(timer);
  return [h("h1", {}, "Overview"), page];
}

// -- topics -----------------------------------------------------------------------------------------------

const topicLink = (name) => h("a", { href: `#/topics/${part(name)}` }, name);
const tableLink = (name) => h("a", { href: `#/tables/${part(name)}` }, name);

async function topics([name, tab]) {
  if (name) return topic(name, tab || "records");
  let internal = false;
  const list = h("div", {}), filter = h("input", { type: "search", placeholder: "part of the name", oninput: () => draw() });
  let found = [];
  const draw = () => list.replaceChildren(grid([["topic", (each) => topicLink(each.name)],
    ["kind", (each) => (each.table ? tableLink(each.name) : each.internal ? "internal" : "topic")],
    ["partitions", (each) => count(each.partitions), "number"],
    ["health", (each) => (each.offline ? h("span", { class: "bad" }, `${count(each.offline)} without a leader`) : each.under_replicated ? h("span", { class: "bad" }, `${count(each.under_replicated)} not in sync`) : "")], ["log", (each) => size(each.bytes), "number"],
    ["records a second", (each) => count(each.records_per_second), "number"]],
  found.filter((each) => each.name.includes(filter.value)), "Topics"));
  const begin = newest();
  const fill = async () => {
    const signal = begin(), answer = await ask(`/api/topics${query({ internal })}`, { signal });
    if (!signal.aborted) { found = answer.topics; draw(); }
  };
  await fill();
  return [h("h1", {}, "Topics"), h("form", { onsubmit: (event) => event.preventDefault() }, field("Filter", filter),
    field("internal topics", h("input", { type: "checkbox", onchange: (event) => { internal = event.target.checked; fill().catch(() => {}); } }), "check")), list];
}

async function topic(name, tab) {
  const base = `#/topics/${part(name)}`, at = `/api/topics/${part(name)}`;
  const found = await ask(at);
  const names = [["records", "Records"], ["partitions", "Partitions"], ["configs", "Configuration"]];
  if (about.writes) names.push(["produce", "Produce"]);
  const head = [h("h1", {}, found.name, " ", h("span", { class: "tag" }, found.table ? "table" : found.internal ? "internal" : "topic")), tabs(base, names, tab)];
  if (found.table) head.push(h("p", {}, "A table: ", tableLink(found.name), " has its rows, columns and options."));
  if (tab === "partitions") return [...head, h("section", {}, grid([["partition", (each) => each.partition, "number"],
    ["leader", (each) => each.leader ?? h("span", { class: "bad" }, "none"), "number"], ["replicas", (each) => each.replicas.join(", ")], ["in sync", (each) => each.in_sync.join(", ")],
    ["offline", (each) => (each.offline.length ? h("span", { class: "bad" }, each.offline.join(", ")) : "")],
    ["first offset", (each) => count(each.first_offset), "number"], ["end offset", (each) => count(each.end_offset), "number"],
    ["log", (each) => size(each.bytes), "number"]], found.partitions, "Partitions"))];
  if (tab === "configs") return [...head, configs((await ask(`${at}/configs`)).configs)];
  if (tab === "produce" && about.writes) return [...head, producing(at)];
  return [...head, browser(at, found)];
}

function configs(found) {
  const list = h("div", {}), filter = h("input", { type: "search", oninput: () => draw() }), all = h("input", { type: "checkbox", onchange: () => draw() });
  const draw = () => list.replaceChildren(grid([["configuration", (each) => each.name, "code"],
    ["value", (each) => (each.sensitive ? "(hidden)" : each.value), "code"], ["from", (each) => each.from],
    ["what it does", (each) => each.documentation || ""]],
  found.filter((each) => each.name.includes(filter.value) && (all.checked || filter.value || !each.default)), "Configurations"));
  draw();
  return h("section", {}, h("form", { onsubmit: (event) => event.preventDefault() }, field("Filter", filter), field("defaults too", all, "check")), list);
}

function text(value) {
  if (value === null) return null;
  const cut = value.size > value.text.length && value.encoding === "utf-8" && value.text.length >= 65536 ? ` … (${size(value.size)})` : "";
  return (value.encoding === "base64" ? "base64 " : "") + value.text + cut;
}

function pretty(value) {
  try { return JSON.stringify(JSON.parse(value), null, 2); } catch { return value; }
}

function browser(at, found) {
  const list = h("div", {}), state = h("p", { class: "soft", role: "status" });
  const from = h("select", {}, [["newest", "the newest"], ["earliest", "the beginning"], ["offset", "an offset"], ["timestamp", "a time"]].map(([value, title]) => h("option", { value }, title)));
  const where = h("input", { placeholder: "offset, or 2024-09-19T12:00" });
  const partition = h("select", {}, h("option", { value: "" }, "all"), found.partitions.map((each) => h("option", { value: each.partition }, each.partition)));
  const key = h("input", {}), contains = h("input", { type: "search" }), limit = h("input", { type: "number", value: 50, min: 1, max: 500 });
  const asTable = h("input", { type: "checkbox", onchange: () => draw() });
  const more = h("button", { type: "button", onclick: () => load(true) }, "More"), live = h("button", { type: "button", onclick: () => tail() }, "Live tail");
  let records = [], next = null, source = null;
  const begin = newest();

  const columns = [["partition", (each) => each.partition, "number"], ["offset", (each) => each.offset, "number"], ["time (UTC)", (each) => moment(each.timestamp_ms), "time"],
    ["key", (each) => text(each.key), "code"], ["value", (each) => one(each), "code"]];
  const one = (each) => (each.value === null ? null : h("details", {}, h("summary", {}, (text(each.value) || "").slice(0, 160) || "(empty)"),
    h("pre", {}, pretty(text(each.value))), each.headers.length ? grid([["header", (one) => one.name, "code"], ["value", (one) => text(one.value), "code"]], each.headers, "Headers") : ""));
  const fields = () => {
    const rows = records.map((each) => { try { return [each, JSON.parse(each.value.text)]; } catch { return [each, null]; } });
    const names = [...new Set(rows.flatMap(([, row]) => (row && typeof row === "object" && !Array.isArray(row) ? Object.keys(row) : [])))].slice(0, 60);
    return grid([...columns.slice(0, 4), ...names.map((name) => [name, ([, row]) => shown(row?.[name]), "code"])].map(([title, cell, kind], index) =>
      [title, index < 4 ? ([each]) => cell(each) : cell, kind]), rows, "Records as rows");
  };
  const draw = () => list.replaceChildren(asTable.checked ? fields() : grid(columns, records, "Records"));
  async function load(further) {
    stop();
    const signal = begin();
    state.textContent = "Reading …";
    try {
      const wanted = { partition: partition.value, key: key.value, contains: contains.value, limit: limit.value };
      const kind = from.value;
      if (further && next) { if (partition.value) wanted.offset = next[partition.value]; }
      else if (kind === "newest") wanted.newest = true;
      else if (kind === "offset") wanted.offset = where.value;
      else if (kind === "timestamp") wanted.timestamp = Date.parse(where.value.includes("Z") || /[+-]\d\d:?\d\d$/.test(where.value) ? where.value : `${where.value}Z`) || where.value;
      const answer = await ask(`${at}/records${query(wanted)}`, { signal });
      if (signal.aborted) return;
      records = answer.records; next = answer.next;
      more.disabled = answer.complete || !partition.value || kind === "newest";
      more.title = partition.value ? "" : "choose a partition to continue from the last record";
      const dark = answer.without_leader.length ? `; without a leader, and left out: ${answer.without_leader.join(", ")}` : "";
      state.textContent = `${counted(records.length, "record")} of ${count(answer.looked_at)} looked at${answer.complete ? "" : "; there are more"}${dark}`;
      draw();
    } catch (error) { if (!signal.aborted) { state.textContent = ""; list.replaceChildren(failure(error)); } }
  }
  function stop() { if (source) { source.close(); source = null; live.textContent = "Live tail"; live.setAttribute("aria-pressed", "false"); } }
  function tail() {
    if (source) { stop(); state.textContent = "Stopped."; return; }
    begin.stop(); records = []; draw();
    source = new EventSource(`${at}/tail${query({ partition: partition.value })}`);
    live.textContent = "Stop"; live.setAttribute("aria-pressed", "true"); state.textContent = "Waiting for new records …";
    source.onmessage = (event) => {
      const record = JSON.parse(event.data);
      if (key.value && (!record.key || record.key.text !== key.value)) return;
      if (contains.value && !(record.value && record.value.text.includes(contains.value))) return;
      records = [record, ...records].slice(0, 200);
      state.textContent = `${counted(records.length, "new record")}`;
      draw();
    };
    source.addEventListener("failed", (event) => { stop(); state.textContent = JSON.parse(event.data).error; });
  }
  leave = () => { stop(); begin.stop(); };
  load(false);
  return h("section", {}, h("form", { onsubmit: (event) => { event.preventDefault(); load(false); } }, field("From", from), field("Offset or time (UTC)", where),
    field("Partition", partition), field("Key", key), field("Value contains", contains), field("At most", limit),
    h("button", { class: "main", type: "submit" }, "Show"), more, live, field("JSON fields as columns", asTable, "check")), state, list);
}

function producing(at) {
  const key = h("input", {}), value = h("textarea", { "aria-label": "Value" }), headers = h("input", { placeholder: '{"name": "value"}' }), said = h("div", { role: "status" });
  return h("section", {}, h("form", { onsubmit: async (event) => {
    event.preventDefault();
    try {
      const record = { value: value.value, headers: headers.value ? JSON.parse(headers.value) : {} };
      if (key.value) record.key = key.value;
      const [place] = (await send(`${at}/records`, { records: [record] })).written;
      said.replaceChildren(h("p", { class: "good" }, `Written to partition ${place.partition} at offset ${place.offset}.`));
    } catch (error) { said.replaceChildren(failure(error)); }
  } }, field("Key", key), field("Headers (JSON)", headers), field("Value", value, "wide"), h("button", { class: "main", type: "submit" }, "Produce")), said);
}

// -- tables -----------------------------------------------------------------------------------------------

async function tables([name, tab]) {
  if (name) return table(name, tab || "rows");
  const found = (await ask("/api/tables")).tables;
  return [h("h1", {}, "Tables"), h("section", {}, grid([["table", (each) => tableLink(each.name)], ["database", (each) => each.database]], found, "Tables"))];
}

async function table(name, tab) {
  const at = `/api/tables/${part(name)}`, found = await ask(at), keyed = found.primary_key.length > 0;
  const names = [["rows", keyed ? "Rows and changes" : "Rows"], ["columns", "Columns"], ["options", "Options"], ["buckets", "Buckets and partitions"]];
  if (about.writes) names.push(["write", "Write"]);
  const head = [h("h1", {}, found.name, " ", h("span", { class: "tag" }, keyed ? "primary key" : "log")), tabs(`#/tables/${part(name)}`, names, tab),
    h("p", { class: "soft" }, `${counted(found.rows, "row")} in ${counted(found.buckets, "bucket")}. `, found.comment || "", " As a topic: ", topicLink(found.name))];
  if (tab === "columns") return [...head, h("section", {}, grid([["column", (each) => each.name, "code"], ["type", (each) => each.type, "code"],
    ["null", (each) => (each.nullable ? "yes" : "no")], ["key", (each) => (each.key ? "primary" : "")], ["comment", (each) => each.comment || ""]], found.columns, "Columns")),
  h("section", {}, h("h2", {}, "Definition"), h("pre", {}, found.sql))];
  if (tab === "options") return [...head, h("section", {}, grid([["option", (each) => each.name, "code"], ["value", (each) => each.value, "code"],
    ["what it does", (each) => each.documentation || ""]], found.options, "Options"))];
  if (tab === "buckets") {
    const topics = found.partitions.length ? found.partitions.map((each) => each.topic) : [found.name];
    const parts = await Promise.all(topics.slice(0, 50).map((each) => ask(`/api/topics/${part(each)}`)));
    const states = keyed ? await Promise.all(parts.map((each) => ask(`/api/tables/${part(each.name)}/snapshots`))) : [];
    const copies = states.flatMap((state, index) => state.buckets.map((each) => ({ ...each, topic: parts[index].name, newest: each.snapshots[0] })));
    return [...head, h("section", {}, grid([["topic", (each) => topicLink(each.topic)], ["bucket", (each) => each.partition, "number"], ["leader", (each) => each.leader, "number"],
      ["first offset", (each) => count(each.first_offset), "number"], ["end offset", (each) => count(each.end_offset), "number"], ["log", (each) => size(each.bytes), "number"]],
    parts.flatMap((each) => each.partitions.map((one) => ({ ...one, topic: each.name }))), "Buckets")),
    keyed ? h("section", {}, h("h2", {}, "State and its snapshots"), grid([["topic", (each) => topicLink(each.topic)], ["bucket", (each) => each.bucket, "number"], ["rows", (each) => count(each.rows), "number"],
      ["state up to offset", (each) => count(each.applied_offset), "number"], ["snapshots", (each) => count(each.snapshots.length), "number"],
      ["newest (UTC)", (each) => (each.newest ? moment(each.newest.time_ms) : "none yet")], ["of offset", (each) => (each.newest ? count(each.newest.offset) : ""), "number"],
      ["rows in it", (each) => (each.newest ? count(each.newest.rows) : ""), "number"], ["size", (each) => (each.newest ? size(each.newest.bytes) : ""), "number"]], copies, "Snapshots")) : ""];
  }
  if (tab === "write" && about.writes) return [...head, writing(at, keyed)];
  return [...head, rows(at, found, keyed)];
}

function rows(at, found, keyed) {
  const left = h("section", {}), right = h("section", {}), key = h("input", { placeholder: found.primary_key.length > 1 ? `{"${found.primary_key.join('": …, "')}": …}` : found.primary_key[0] });
  const begin = newest();
  leave = begin.stop;
  const some = async (signal = begin()) => {
    const found = await ask(`${at}/rows?limit=50`, { signal });
    if (signal.aborted) return;
    left.replaceChildren(h("h2", {}, "Some rows"), rowsGrid(found, "Rows"));
    right.replaceChildren(h("h2", {}, "Changes of a key"), h("p", { class: "soft" }, "Look up a row to see its changes."));
  };
  const look = async (event) => {
    event.preventDefault();
    const signal = begin();
    try {
      if (!key.value) { await some(signal); return; }
      const [row, changes] = await Promise.all([ask(`${at}/rows${query({ key: key.value })}`, { signal }), ask(`${at}/changes${query({ key: key.value })}`, { signal })]);
      if (signal.aborted) return;
      left.replaceChildren(h("h2", {}, "Row"), row.rows.length ? grid([["column", (each) => each[0], "code"], ["value", (each) => shown(each[1]), "code"]],
        row.columns.map((column, index) => [column.name, row.rows[0][index]]), "Row") : h("p", {}, "The row does not exist."));
      right.replaceChildren(h("h2", {}, "Changes, newest first"), grid([["change", (each) => each.change, "code"], ["time (UTC)", (each) => moment(each.timestamp_ms), "time"],
        ["offset", (each) => each.offset, "number"], ...changes.columns.map((column, index) => [column.name, (each) => shown(each.row[index]), "code"])], changes.changes, "Changes"));
    } catch (error) { if (!signal.aborted) { left.replaceChildren(failure(error)); right.replaceChildren(); } }
  };
  const first = begin();
  some(first).catch((error) => { if (!first.aborted) left.replaceChildren(failure(error)); });
  if (!keyed) return left;
  return h("div", {}, h("form", { onsubmit: look }, field("Primary key", key), h("button", { class: "main", type: "submit" }, "Look up")), h("div", { class: "two" }, left, right));
}

function writing(at, keyed) {
  const value = h("textarea", { "aria-label": "Rows as JSON" }), said = h("div", { role: "status" });
  const act = async (method, name, word) => {
    try {
      const rows = Array.isArray(JSON.parse(value.value)) ? value.value : `[${value.value}]`;
      const answer = await send(`${at}/rows`, `{"${name}": ${rows}}`, method);
      said.replaceChildren(h("p", { class: "good" }, `${counted(answer[word], "row")} ${word}.`));
    } catch (error) { said.replaceChildren(failure(error)); }
  };
  return h("section", {}, h("form", { onsubmit: (event) => { event.preventDefault(); act("POST", "rows", "written"); } }, field("Rows as JSON: an object, or a list of them", value, "wide"),
    h("button", { class: "main", type: "submit" }, keyed ? "Upsert" : "Append"), keyed ? h("button", { type: "button", onclick: () => act("DELETE", "keys", "deleted") }, "Delete these keys") : ""), said);
}

// -- SQL --------------------------------------------------------------------------------------------------

let lastQuery = "";
function sql() {
  const text = h("textarea", { "aria-label": "Query", spellcheck: "false", value: lastQuery, placeholder: "SELECT name, count(*) FROM fruit GROUP BY name" });
  const result = h("div", { "aria-live": "polite" }), begin = newest();
  const cancel = h("button", { type: "button", disabled: true, onclick: () => begin.stop() }, "Cancel");
  const run = async (before = "") => {
    const signal = begin();
    lastQuery = text.value;
    cancel.disabled = false;
    result.replaceChildren(h("p", { class: "soft" }, "Running …"));
    try {
      const found = await send("/api/sql", { query: before + text.value }, "POST", signal);
      if (signal.aborted) return;
      const numeric = found.columns.findLastIndex((column) => /^(u?int|float|double|decimal)/.test(column.type));
      const chart = numeric > 0 && found.rows.length > 1 ? h("section", {}, h("h2", {}, `${found.columns[numeric].name} by ${found.columns[0].name}`),
        bars(found.columns[numeric].name, found.rows.slice(0, 20).map((row) => [row[0], Number(row[numeric]) || 0]))) : "";
      result.replaceChildren(h("p", { class: "soft" }, `${counted(found.rows.length, "row")}${found.more ? " (there are more)" : ""} in ${found.ms} ms`),
        h("section", {}, rowsGrid(found, "Result")), chart);
    } catch (error) {
      if (begin.current() !== signal) return;
      result.replaceChildren(signal.aborted ? h("p", { class: "soft" }, "Cancelled.") : h("pre", { class: "error", role: "alert" }, error.message));
    }
    if (begin.current() === signal) cancel.disabled = true;
  };
  leave = begin.stop;
  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); } });
  return [h("h1", {}, "SQL"), h("section", {}, h("form", { onsubmit: (event) => { event.preventDefault(); run(); } }, field("One SELECT over tables and topics (Ctrl+Enter runs it)", text, "wide"),
    h("button", { class: "main", type: "submit" }, "Run"), h("button", { type: "button", onclick: () => run("EXPLAIN ") }, "Plan"), cancel)), result];
}

// -- groups -----------------------------------------------------------------------------------------------

async function groups([name]) {
  if (name) return group(name);
  const found = (await ask("/api/groups")).groups;
  return [h("h1", {}, "Consumer groups"), h("section", {}, grid([["group", (each) => h("a", { href: `#/groups/${part(each.group)}` }, each.group)], ["state", (each) => each.state],
    ["members", (each) => count(each.members), "number"], ["lag", (each) => count(each.lag), "number"], ["topics", (each) => each.topics.join(", ")]], found, "Groups"))];
}

async function group(name) {
  const at = `/api/groups/${part(name)}`, found = await ask(at);
  const page = [h("h1", {}, found.group, " ", h("span", { class: "tag" }, found.state)),
    h("section", {}, h("h2", {}, "Positions"), grid([["topic", (each) => topicLink(each.topic)], ["partition", (each) => each.partition, "number"], ["offset", (each) => count(each.offset), "number"],
      ["end", (each) => count(each.end_offset), "number"], ["lag", (each) => count(each.lag), "number"]], found.positions, "Positions")),
    h("section", {}, h("h2", {}, "Members"), grid([["member", (each) => each.member, "code"], ["client", (each) => each.client], ["host", (each) => each.host]], found.members, "Members"))];
  if (about.writes) page.push(resetting(at, found));
  return page;
}

function resetting(at, found) {
  const of = [...new Set(found.positions.map((each) => each.topic))], said = h("div", { role: "status" });
  const topic = h("input", { list: "topics-of-group", value: of[0] || "", required: true }), to = h("input", { value: "latest", required: true });
  const act = async (dry) => {
    try {
      const answer = await send(`${at}/reset`, { topic: topic.value, to: to.value, dry_run: dry });
      said.replaceChildren(h("p", { class: answer.set ? "good" : "soft" }, answer.set ? "The offsets were set." : "The offsets would be set to these."),
        grid([["partition", (each) => each.partition, "number"], ["before", (each) => count(each.before), "number"], ["after", (each) => count(each.after), "number"]], answer.offsets, "Offsets"));
    } catch (error) { said.replaceChildren(failure(error)); }
  };
  return h("section", {}, h("h2", {}, "Reset"), h("datalist", { id: "topics-of-group" }, of.map((each) => h("option", { value: each }))),
    h("form", { onsubmit: (event) => { event.preventDefault(); act(true); } }, field("Topic", topic), field("To earliest, latest, an offset or a time (UTC, 2024-09-19T12:00)", to),
      h("button", { type: "submit" }, "Preview offsets"), h("button", { class: "main", type: "button", onclick: () => act(false) }, "Reset")), said);
}

// -- the lake, refused records, brokers ---------------------------------------------------------------------

async function lake() {
  const found = (await ask("/api/lake")).entries;
  return [h("h1", {}, "The lake"), h("section", {}, grid([["table or topic", (each) => (each.topic ? topicLink : tableLink)(each.name)], ["format", (each) => each.format],
    ["behind", (each) => count(each.behind), "number"], ["oldest", (each) => span(each.behind_ms), "number"], ["freshness", (each) => span(each.freshness_ms), "number"],
    ["last commit (UTC)", (each) => (each.committed_at_ms === null ? "never" : moment(each.committed_at_ms))], ["snapshot", (each) => each.snapshot ?? "", "code"],
    ["commits", (each) => count(each.commits), "number"], ["round", (each) => (each.worker ? `${each.worker}: ${each.doing} (${span(each.round_ms)})` : "none is running")],
    ["last error", (each) => (each.failures ? h("span", { class: "bad" }, `${each.failures} failed: ${each.failure}`) : "")]], found, "The lake"))];
}

async function refused() {
  const found = (await ask("/api/refused")).tables;
  return [h("h1", {}, "Refused records"), h("p", { class: "soft" }, "The last 50 of each table since the server started. The option table.kafka.dead-letter-topic keeps them in a topic."),
    ...(found.length ? found.map((table) => h("section", {}, h("h2", {}, tableLink(table.table), ` – ${count(table.count)} in all`),
      grid([["time (UTC)", (each) => moment(each.time_ms)], ["reason", (each) => each.reason, "words"], ["partition", (each) => each.partition, "number"],
        ["record", (each) => (each.index < 0 ? "batch" : each.index), "number"], ["error", (each) => each.code, "code"], ["dead letter", (each) => (each.dead_letter ? "yes" : "no")]], table.records, `Refused by ${table.table}`)))
      : [h("section", {}, h("p", {}, "Nothing was refused."))])];
}

async function brokers([id]) {
  if (id) return [h("h1", {}, `Broker ${id}`), configs((await ask(`/api/brokers/${part(id)}/configs`)).configs)];
  const found = (await ask("/api/brokers")).brokers;
  return [h("h1", {}, "Brokers"), h("section", {}, grid([["broker", (each) => h("a", { href: `#/brokers/${part(each.broker)}` }, each.broker)], ["address", (each) => each.address, "code"],
    ["state", (each) => h("span", { class: each.alive ? "good" : "bad" }, each.alive ? "alive" : "not alive")], ["controller", (each) => (each.controller ? "yes" : "")], ["leads", (each) => count(each.partitions_led), "number"], ["version", (each) => each.version ?? "–"],
    ["up", (each) => span(each.up_ms), "number"], ["memory", (each) => size(each.memory_bytes), "number"],
    ["open files", (each) => (each.open_files < 0 ? "–" : each.open_files_max < 0 ? `${each.open_files}`
      : `${each.open_files} of ${each.open_files_max}${each.open_files > 0.8 * each.open_files_max ? ": raise ulimit -n" : ""}`), "number"],
    ["disk free", (each) => (each.disk_bytes < 0 ? "–" : `${size(each.disk_free_bytes)} of ${size(each.disk_bytes)}`), "number"]], found, "Brokers"))];
}

// -- users and rights ---------------------------------------------------------------------------------------

async function users() {
  const page = h("div", {}), said = h("div", { role: "status" });
  const fill = async () => {
    const found = await ask("/api/users");
    const drop = (name) => h("button", { type: "button", onclick: () => act("/api/users/delete", { name }, `${name} was deleted.`) }, "Delete");
    const take = (each) => h("button", { type: "button", onclick: () => act("/api/grants/revoke", revocation(each), "The right was revoked.") }, "Revoke");
    const own = about.writes ? [["", (each) => drop(each.name)]] : [];
    const back = about.writes ? [["", (each) => (revocation(each) ? take(each) : "")]] : [];
    page.replaceChildren(
      found.protected ? "" : h("p", { class: "soft" }, "The server has no authorizer: every client that can connect has all rights."),
      h("section", {}, h("h2", {}, "Users with a password"), grid([["user", (each) => each.name, "code"], ["mechanisms", (each) => each.mechanisms.join(", ")], ...own], found.users, "Users")),
      found.protected ? h("section", {}, h("h2", {}, "Rights"), grid([["principal", (each) => each.principal, "code"], ["", (each) => h("span", { class: each.denied ? "bad" : "good" }, each.denied ? "denied" : "allowed")],
        ["privilege", (each) => each.privilege + (each.columns.length ? ` (${each.columns.join(", ")})` : "")], ["on", (each) => each.on, "code"], ["from host", (each) => each.host, "code"], ...back], found.grants, "Rights")) : "");
  };
  const act = async (path, body, done) => {
    try { await send(path, body); await fill(); said.replaceChildren(h("p", { class: "good" }, done)); } catch (error) { said.replaceChildren(failure(error)); }
  };
  await fill();
  return [h("h1", {}, "Users and rights"), page, about.writes ? userForms(act) : "", said];
}

// The request that revokes a right. Only rights on a table or a database, from any host, have one.
function revocation(each) {
  const [, kind, on] = /^(table|database) (.+)$/.exec(each.on) || [];
  return kind && !each.denied && each.host === "*" ? { principal: each.principal, privileges: each.privilege.split(", "), on, columns: each.columns } : null;
}

function userForms(act) {
  const name = h("input", { required: true, autocomplete: "off" }), password = h("input", { type: "password", required: true, autocomplete: "new-password" });
  const who = h("input", { required: true }), what = h("input", { required: true, placeholder: "SELECT, INSERT" }), on = h("input", { required: true, placeholder: "db.table or db" });
  const list = (text) => text.split(",").map((each) => each.trim()).filter(Boolean);
  return h("section", {}, h("h2", {}, "Change"),
    h("form", { onsubmit: (event) => { event.preventDefault(); act("/api/users", { name: name.value, password: password.value }, `${name.value} has a new password.`); password.value = ""; } },
      field("User", name), field("Password", password), h("button", { class: "main", type: "submit" }, "Add or change")),
    h("form", { onsubmit: (event) => { event.preventDefault(); act("/api/grants", { principal: who.value, privileges: list(what.value), on: on.value }, "The right was granted."); } },
      field("Principal", who), field("Privileges", what), field("On", on), h("button", { class: "main", type: "submit" }, "Grant")));
}

// -- the frame --------------------------------------------------------------------------------------------

const MAKERS = { "": overview, topics, tables, sql, groups, lake, refused, brokers, users };
let turn = 0;

async function show() {
  const own = ++turn;
  leave(); leave = () => {};
  const [first, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map((each) => { try { return decodeURIComponent(each); } catch { return each; } });
  document.getElementById("nav").replaceChildren(...PAGES.map(([key, title]) => h("a", { href: `#/${key}`, "aria-current": key === first ? "page" : null }, title)));
  document.title = `${[PAGES.find(([key]) => key === first)?.[1] || "?", ...rest].filter(Boolean).join(" – ")} – Headrace`;
  let made;
  try { made = await (MAKERS[first] || (() => [h("h1", {}, "This page does not exist.")]))(rest); } catch (error) { made = [failure(error)]; }
  if (own === turn) main.replaceChildren(...made.flat(9));
  main.dataset.shown = location.hash;
}

function theme(wanted) {
  document.documentElement.dataset.theme = wanted;
  try { localStorage.setItem("theme", wanted); } catch { /* the choice is not kept */ }
}

document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
let chosen = null;
try { chosen = localStorage.getItem("theme"); } catch { /* none */ }
theme(chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
ask("/api/about").then((found) => {
  about = found;
  document.getElementById("about").textContent = `${found.server} · ${found.version}${found.writes ? "" : " · read only"}`;
  return show();
}).catch((error) => main.replaceChildren(failure(error)));
