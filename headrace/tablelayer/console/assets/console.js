// The pages of the console, one for each first part of the address behind #.
import { about, acting, ask, count, counted, failure, field, grid, h, leave, listing, moment, newest, onLeave, part, query, rowsGrid, send, shown, size, span, tabs } from "./parts.js";
import { browser, producing } from "./records.js";
import { changes } from "./changes.js";
import { sql } from "./sql.js";
import { plotsOf } from "./plots.js";
import { users } from "./users.js";
import { connectors, schemas } from "./outside.js";

const main = document.getElementById("main");

const PAGES = [["", "Overview"], ["topics", "Topics"], ["tables", "Tables"], ["sql", "SQL"], ["groups", "Groups"],
  ["lake", "Lake"], ["refused", "Refused"], ["brokers", "Brokers"], ["schemas", "Schemas", "registry"], ["connectors", "Connectors", "connect"], ["users", "Users"]];

// -- overview ---------------------------------------------------------------------------------------------

async function overview() {
  const cards = h("div", {}), lists = h("div", {});
  const many = (noun, value) => (value === 1 ? noun : `${noun}s`);
  const card = (title, value, kind) => h("div", { class: "card" }, h("b", { class: kind || null }, value), h("span", {}, title));
  const fill = async () => {
    const found = await ask("/api/overview");
    cards.replaceChildren(
      found.trouble ? failure(new Error(found.trouble)) : "",
      h("div", { class: "cards" },
        card(many("offline partition", found.offline.length), found.offline.length ? count(found.offline.length) : "none", found.offline.length ? "bad" : "good"),
        card(found.missing.length ? `brokers are alive; away: ${found.missing.join(", ")}` : many("broker", found.brokers), found.missing.length ? `${count(found.brokers)} of ${count(found.brokers + found.missing.length)}` : count(found.brokers), found.missing.length ? "bad" : null),
        card("partitions not in sync", found.under_replicated ? count(found.under_replicated) : "none", found.under_replicated ? "bad" : "good"), card(many("topic", found.topics), count(found.topics)), card(many("partition", found.partitions), count(found.partitions)),
        card(`${many("record", found.records_per_second)} a second`, count(found.records_per_second)), card("in logs", size(found.bytes)),
        card(many("refused record", found.refused), count(found.refused), found.refused ? "bad" : null)));
    lists.replaceChildren(
      found.offline.length ? h("section", {}, h("h2", {}, "Offline partitions"),
        listing([["topic", (each) => topicLink(each.topic)], ["partition", (each) => each.partition, "number"]], found.offline, "Offline partitions", { filter: true })) : "",
      h("section", {}, h("h2", {}, "Busiest topics"), grid([["topic", (each) => topicLink(each.topic)],
        ["records a second", (each) => count(each.records_per_second), "number"]], found.busiest.filter((each) => each.records_per_second > 0), "Busiest topics", { empty: found.topics ? "No topic is written to now." : NO_TOPIC })));
  };
  await fill();
  const timer = setInterval(() => fill().catch((error) => cards.replaceChildren(failure(error))), 5000);
  onLeave(() => clearInterval(timer));
  return [h("h1", {}, "Overview"), cards, plotsOf("cluster", "", [["Records written a second", "records_per_second", count], ["Bytes of logs", "bytes", size, true],
    ["CPU, % of one core", "cpu_percent", count], ["Memory of servers", "memory_bytes", size, true]]), lists];
}

// -- topics -----------------------------------------------------------------------------------------------

const topicLink = (name) => h("a", { href: `#/topics/${part(name)}` }, name);
const TOPIC_PLOTS = [["Records written a second", "records_per_second", count], ["Bytes of the log", "bytes", size, true]];
const NO_TOPIC = "There is no topic yet. Create one: headrace topics create clicks, or CREATE TABLE in headrace sql.";
const kindOf = (each) => (each.table ? (each.table === each.name ? "table" : "table partition") : each.internal ? "internal" : "topic");
const tableLink = (name, title = name) => h("a", { href: `#/tables/${part(name)}` }, title);

async function topics([name, tab]) {
  if (name) return topic(name, tab || "records");
  let internal = false;
  const list = h("div", {}), begin = newest();
  const fill = async () => {
    const signal = begin(), answer = await ask(`/api/topics${query({ internal })}`, { signal });
    if (signal.aborted) return;
    list.replaceChildren(listing([["topic", (each) => topicLink(each.name), "name"],
      ["kind", (each) => (each.table ? tableLink(each.table, kindOf(each)) : kindOf(each)), "short", kindOf],
      ["partitions", (each) => count(each.partitions), "number"],
      ["health", (each) => (each.offline ? h("span", { class: "bad" }, `${count(each.offline)} without a leader`) : each.under_replicated ? h("span", { class: "bad" }, `${count(each.under_replicated)} not in sync`) : ""), "short"],
      ["log", (each) => size(each.bytes), "number", (each) => each.bytes],
      ["records a second", (each) => count(each.records_per_second), "number", (each) => each.records_per_second]], answer.topics, "Topics", { filter: true, empty: NO_TOPIC }));
  };
  await fill();
  return [h("h1", {}, "Topics"), h("form", { onsubmit: (event) => event.preventDefault() },
    field("internal topics", h("input", { type: "checkbox", onchange: (event) => { internal = event.target.checked; fill().catch((error) => list.replaceChildren(failure(error))); } }), "check")), h("section", {}, list), about.writes ? creating() : ""];
}

// Texts NAME=VALUE, one on each line, as an object.
function pairs(text) {
  return Object.fromEntries(text.split("\n").map((each) => each.trim()).filter(Boolean).map((each) => {
    const at = each.indexOf("=");
    if (at < 1) throw new Error(`${each} is not a configuration: write NAME=VALUE, one on each line`);
    return [each.slice(0, at).trim(), each.slice(at + 1).trim()];
  }));
}

function creating() {
  const name = h("input", { required: true, autocomplete: "off" }), partitions = h("input", { type: "number", min: 1, placeholder: "default" }), replicas = h("input", { type: "number", min: 1, placeholder: "default" });
  const settings = h("textarea", { placeholder: "retention.ms=86400000" });
  return acting("Create a topic", [field("Name", name), field("Partitions", partitions), field("Replicas", replicas), field("Configurations, NAME=VALUE on each line", settings, "wide")], "Create", async () => {
    const body = { name: name.value, configs: pairs(settings.value) };
    if (partitions.value) body.partitions = Number(partitions.value);
    if (replicas.value) body.replicas = Number(replicas.value);
    const made = await send("/api/topics", body);
    location.hash = `#/topics/${part(made.name)}`;
    return `${made.name} was created with ${counted(made.partitions, "partition")}.`;
  });
}

function changing(at, found) {
  const more = h("input", { type: "number", min: found.partitions.length + 1, value: found.partitions.length + 1, required: true }), again = h("input", { required: true, autocomplete: "off", placeholder: found.name });
  return [acting("Add partitions", [field("Number of partitions", more)], "Add", async () => {
    const made = await send(`${at}/partitions`, { count: Number(more.value) });
    return `${found.name} has ${counted(made.partitions, "partition")}. Records with a key may go to another partition from now on.`;
  }), acting("Delete the topic", [field("Its name, to confirm", again)], "Delete", async () => {
    await send(at, { name: again.value }, "DELETE");
    location.hash = "#/topics";
    return `${found.name} was deleted.`;
  })];
}

function altering(at) {
  const set = h("textarea", { placeholder: "retention.ms=86400000" }), reset = h("input", { placeholder: "cleanup.policy, retention.bytes" });
  return acting("Change", [field("Set, NAME=VALUE on each line", set, "wide"), field("Reset to the default", reset)], "Change", async () => {
    const done = await send(`${at}/configs`, { set: pairs(set.value), reset: reset.value.split(",").map((each) => each.trim()).filter(Boolean) });
    return `Changed: ${[...done.set, ...done.reset].join(", ")}. Open the tab again to see the values.`;
  });
}

async function topic(name, tab) {
  const base = `#/topics/${part(name)}`, at = `/api/topics/${part(name)}`;
  const found = await ask(at);
  const names = [["records", "Records"], ["partitions", "Partitions"], ["configs", "Configuration"], ["plots", "Plots"]];
  if (about.writes) names.push(["produce", "Produce"]);
  if (about.writes && !found.table) names.push(["change", "Partitions and deletion"]);
  const head = [h("h1", {}, found.name, " ", h("span", { class: "tag" }, kindOf(found))), tabs(base, names, tab)];
  if (found.table) head.push(h("p", {}, found.table === found.name ? "A table: " : "A partition of a table: ", tableLink(found.table), " has its rows, columns and options."));
  if (tab === "partitions") return [...head, h("section", {}, listing([["partition", (each) => each.partition, "number"],
    ["leader", (each) => each.leader ?? h("span", { class: "bad" }, "none"), "number"], ["replicas", (each) => each.replicas.join(", ")], ["in sync", (each) => each.in_sync.join(", ")],
    ["offline", (each) => (each.offline.length ? h("span", { class: "bad" }, each.offline.join(", ")) : "")],
    ["first offset", (each) => count(each.first_offset), "number"], ["end offset", (each) => count(each.end_offset), "number"],
    ["log", (each) => size(each.bytes), "number", (each) => each.bytes]], found.partitions, "Partitions"))];
  if (tab === "configs") return [...head, configs((await ask(`${at}/configs`)).configs), about.writes ? altering(at) : ""];
  if (tab === "plots") return [...head, plotsOf("topic", name, TOPIC_PLOTS)];
  if (tab === "change" && about.writes && !found.table) return [...head, changing(at, found)];
  if (tab === "produce" && about.writes) return [...head, producing(at)];
  return [...head, browser(at, found)];
}

function configs(found) {
  const list = h("div", {}), all = h("input", { type: "checkbox", onchange: () => draw() });
  const draw = () => list.replaceChildren(listing([["configuration", (each) => each.name, "code"],
    ["value", (each) => (each.sensitive ? "(hidden)" : each.value), "code"], ["from", (each) => each.from],
    ["what it does", (each) => each.documentation || "", "words"]],
  found.filter((each) => all.checked || !each.default), "Configurations", { filter: true, empty: "Everything has its default. Tick the box to see the defaults, too." }));
  draw();
  return h("section", {}, h("form", { onsubmit: (event) => event.preventDefault() }, field("defaults too", all, "check")), list);
}

// -- tables -----------------------------------------------------------------------------------------------

async function tables([name, tab]) {
  if (name) return table(name, tab || "rows");
  const found = (await ask("/api/tables")).tables;
  return [h("h1", {}, "Tables"), h("section", {}, listing([["table", (each) => tableLink(each.name), "name"], ["database", (each) => each.database]], found, "Tables",
    { filter: true, empty: "There is no table yet. Create one: headrace sql -e \"CREATE TABLE fruit (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)\"." }))];
}

function placesOf({ buckets, partitions, partitioned_by: by }) {
  return by.length ? `${counted(partitions.length, "partition")} by ${by.join(", ")}` : counted(buckets, "bucket");
}

async function table(name, tab) {
  const at = `/api/tables/${part(name)}`, found = await ask(at), keyed = found.primary_key.length > 0;
  const names = [["rows", keyed ? "Rows and changes" : "Rows"], ["columns", "Columns"], ["options", "Options"], ["buckets", "Buckets and partitions"], ["live", "Live changes"], ["plots", "Plots"]];
  if (about.writes) names.push(["write", "Write"]);
  const head = [h("h1", {}, found.name, " ", h("span", { class: "tag" }, keyed ? "primary key" : "log")), tabs(`#/tables/${part(name)}`, names, tab),
    found.comment ? h("p", {}, found.comment) : "", h("p", { class: "soft" }, `${counted(found.rows, "row")} in ${placesOf(found)}`, ...(found.partitioned_by.length ? [", each of which is a topic."] : [". As a topic: ", topicLink(found.name)]))];
  if (tab === "columns") return [...head, h("section", {}, grid([["column", (each) => each.name, "code"], ["type", (each) => each.type, "code"],
    ["null", (each) => (each.nullable ? "yes" : "no")], ["key", (each) => (each.key ? "primary" : "")], ["comment", (each) => each.comment || ""]], found.columns, "Columns")),
  h("section", {}, h("h2", {}, "Definition"), h("pre", {}, found.sql))];
  if (tab === "options") return [...head, h("section", {}, grid([["option", (each) => each.name, "code"], ["value", (each) => each.value, "code"],
    ["what it does", (each) => each.documentation || "", "words"]], found.options, "Options", { empty: "No option is set: all have their defaults. SHOW OPTIONS in headrace sql lists them." }))];
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
  if (tab === "plots") return [...head, plotsOf("table", found.name, [...(keyed ? [["Keys looked up a second", "lookups_per_second", count]] : []), [keyed ? "Keys written a second" : "Rows written a second", "rows_per_second", count],
    ...(found.partitions.length ? [] : [["Changes in the log a second", "records_per_second", count, false, "topic"], [...TOPIC_PLOTS[1], "topic"]]),
    ...(found.in_lake ? [["Age of the oldest change that is not in the lake", "behind_ms", span, false, "lake"]] : [])])];
  if (tab === "live") return [...head, changes(at, found, keyed)];
  if (tab === "write" && about.writes) return [...head, writing(at, keyed)];
  return [...head, rows(at, found, keyed)];
}

function rows(at, found, keyed) {
  const left = h("section", {}), right = h("section", {}), key = h("input", { placeholder: found.primary_key.length > 1 ? `{"${found.primary_key.join('": …, "')}": …}` : found.primary_key[0] });
  const begin = newest();
  onLeave(begin.stop);
  const some = async (signal = begin()) => {
    const found = await ask(`${at}/rows?limit=50`, { signal });
    if (signal.aborted) return;
    left.replaceChildren(h("h2", {}, "Some rows"), rowsGrid(found, "Rows", "The table has no row. Write some: the tab Write, headrace sql, or a producer to its topic."));
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
        ["offset", (each) => each.offset, "number"], ...changes.columns.map((column, index) => [column.name, (each) => shown(each.row[index]), "code"])], changes.changes, "Changes"),
        changes.complete ? "" : h("p", { class: "soft" }, "Older changes are left out: at most 100 are shown, of the newest 100,000 of each bucket."));
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

// -- groups -----------------------------------------------------------------------------------------------

async function groups([name]) {
  if (name) return group(name);
  const found = (await ask("/api/groups")).groups;
  return [h("h1", {}, "Consumer groups"), h("section", {}, listing([["group", (each) => h("a", { href: `#/groups/${part(each.group)}` }, each.group), "name"], ["state", (each) => each.state],
    ["members", (each) => count(each.members), "number"], ["lag", (each) => count(each.lag), "number"], ["topics", (each) => each.topics.join(", ")]], found, "Groups",
    { filter: true, empty: "There is no consumer group yet. One appears as soon as a consumer with a group.id has joined or committed an offset." }))];
}

async function group(name) {
  const at = `/api/groups/${part(name)}`, found = await ask(at);
  const page = [h("h1", {}, found.group, " ", h("span", { class: "tag" }, found.state)), plotsOf("group", name, [["Lag, records", "lag", count]]),
    h("section", {}, h("h2", {}, "Positions"), listing([["topic", (each) => topicLink(each.topic)], ["partition", (each) => each.partition, "number"], ["offset", (each) => count(each.offset), "number"],
      ["end", (each) => count(each.end_offset), "number"], ["lag", (each) => count(each.lag), "number"]], found.positions, "Positions", { filter: true, empty: "The group has committed no offset yet." })),
    h("section", {}, h("h2", {}, "Members"), grid([["member", (each) => each.member, "code"], ["client", (each) => each.client], ["host", (each) => each.host],
      ["partitions", (each) => (each.assigned.length ? each.assigned.flatMap((one, index) => [index ? ", " : "", topicLink(one.topic), `: ${one.partitions.join(", ")}`]) : "none")]], found.members, "Members", { empty: "The group has no member now: its consumers are stopped." }))];
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

async function lake([name]) {
  const found = (await ask("/api/lake")).entries;
  if (name) return [h("h1", {}, `${name} in the lake`), found.some((each) => each.name === name) ? plotsOf("lake", name, [["Age of the oldest change that is not in the lake", "behind_ms", span]])
    : h("section", {}, h("p", { class: "soft empty" }, `${name} is not tiered to a lake. Set 'table.datalake.enabled' = 'true' for it, and run headrace tier.`))];
  return [h("h1", {}, "The lake"), h("section", {}, listing([["table or topic", (each) => (each.topic ? topicLink : tableLink)(each.name), "name"], ["format", (each) => each.format],
    ["behind", (each) => count(each.behind), "number"], ["oldest", (each) => h("a", { href: `#/lake/${part(each.name)}` }, span(each.behind_ms)), "number", (each) => each.behind_ms], ["freshness", (each) => span(each.freshness_ms), "number"],
    ["last commit (UTC)", (each) => (each.committed_at_ms === null ? "never" : moment(each.committed_at_ms))], ["snapshot", (each) => each.snapshot ?? "", "code"],
    ["commits", (each) => count(each.commits), "number"], ["round", (each) => (each.worker ? `${each.worker}: ${each.doing} (${span(each.round_ms)})` : "none is running")],
    ["last error", (each) => (each.failures ? h("span", { class: "bad" }, `${each.failures} failed: ${each.failure}`) : "")]], found, "The lake", { filter: true, empty: "Nothing is tiered to a lake. Set 'table.datalake.enabled' = 'true' for a table, and run headrace tier." }))];
}

async function refused() {
  const found = (await ask("/api/refused")).tables;
  return [h("h1", {}, "Refused records"), h("p", { class: "soft" }, "The last 50 of each table since the server started. The option table.kafka.dead-letter-topic keeps them in a topic."),
    ...(found.length ? found.map((table) => h("section", {}, h("h2", {}, tableLink(table.table), ` – ${count(table.count)} in all`),
      grid([["time (UTC)", (each) => moment(each.time_ms)], ["reason", (each) => each.reason, "words"], ["partition", (each) => each.partition, "number"],
        ["record", (each) => (each.index < 0 ? "batch" : each.index), "number"], ["error", (each) => each.code, "code"], ["dead letter", (each) => (each.dead_letter ? "yes" : "no")]], table.records, `Refused by ${table.table}`)))
      : [h("section", {}, h("p", { class: "soft empty" }, "Nothing was refused. Records that do not fit their table appear here, with the reason."))])];
}

async function broker(id) {
  const [{ brokers: all }, found] = await Promise.all([ask("/api/brokers"), ask(`/api/brokers/${part(id)}/configs`).catch((error) => ({ error }))]);
  const own = all.find((each) => String(each.broker) === id);
  if (!own) throw new Error(`There is no broker ${id}. The page Brokers lists those that the cluster knows.`);
  const facts = [["address", own.address], ["state", h("span", { class: own.alive ? "good" : "bad" }, own.alive ? "alive" : "not alive")], ["controller", own.controller ? "yes" : "no"], ["rack", own.rack ?? "none"], ["partitions led", count(own.partitions_led)],
    ["version", own.version ?? "–"], ["up", span(own.up_ms)], ["open files", own.open_files < 0 ? "–" : count(own.open_files)], ["disk free", own.disk_bytes < 0 ? "–" : `${size(own.disk_free_bytes)} of ${size(own.disk_bytes)}`]];
  return [h("h1", {}, `Broker ${id}`), h("section", {}, grid([["", (each) => each[0]], ["", (each) => each[1]]], facts, "Facts", { headless: true })),
    plotsOf("broker", id, [["CPU, % of one core", "cpu_percent", count], ["Memory", "memory_bytes", size, true], ["Disk free", "disk_free_bytes", size, true]]),
    h("h2", {}, "Configuration"), !own.alive ? h("p", { class: "soft empty" }, "A broker that is not alive cannot be asked for its configuration.") : found.error ? failure(found.error) : configs(found.configs)];
}

async function brokers([id]) {
  if (id) return broker(id);
  const found = (await ask("/api/brokers")).brokers;
  return [h("h1", {}, "Brokers"), h("section", {}, listing([["broker", (each) => h("a", { href: `#/brokers/${part(each.broker)}` }, each.broker)], ["address", (each) => each.address, "code"],
    ["state", (each) => h("span", { class: each.alive ? "good" : "bad" }, each.alive ? "alive" : "not alive")], ["controller", (each) => (each.controller ? "yes" : "")], ["leads", (each) => count(each.partitions_led), "number"], ["version", (each) => each.version ?? "–"],
    ["up", (each) => span(each.up_ms), "number"], ["memory", (each) => size(each.memory_bytes), "number"],
    ["open files", (each) => (each.open_files < 0 ? "–" : each.open_files_max < 0 ? `${each.open_files}`
      : `${each.open_files} of ${each.open_files_max}${each.open_files > 0.8 * each.open_files_max ? ": raise ulimit -n" : ""}`), "number"],
    ["disk free", (each) => (each.disk_bytes < 0 ? "–" : `${size(each.disk_free_bytes)} of ${size(each.disk_bytes)}`), "number"]], found, "Brokers", { filter: true }))];
}

// -- the frame --------------------------------------------------------------------------------------------

const MAKERS = { "": overview, topics, tables, sql, groups, lake, refused, brokers, schemas, connectors, users };
let turn = 0;

async function show() {
  const own = ++turn;
  leave();
  const [first, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map((each) => { try { return decodeURIComponent(each); } catch { return each; } });
  document.getElementById("nav").replaceChildren(...PAGES.filter(([, , needed]) => !needed || about[needed]).map(([key, title]) => h("a", { href: `#/${key}`, "aria-current": key === first ? "page" : null }, title)));
  document.title = `${[PAGES.find(([key]) => key === first)?.[1] || "?", ...rest].filter(Boolean).join(" – ")} – Headrace`;
  delete main.dataset.shown;
  const late = setTimeout(() => { if (own === turn) main.replaceChildren(h("p", { class: "soft loading", role: "status" }, "Loading …")); }, 200);
  let made;
  try { made = await (MAKERS[first] || (() => [h("h1", {}, "This page does not exist"), h("p", { class: "soft empty" }, "Choose one of the pages above.")]))(rest); } catch (error) { made = [h("h1", {}, "This page cannot be shown"), failure(error)]; }
  clearTimeout(late);
  if (own !== turn) return;
  main.replaceChildren(...made.flat(9));
  main.dataset.shown = location.hash || "#/";
}

function theme(wanted) {
  document.documentElement.dataset.theme = wanted;
  dispatchEvent(new Event("themed"));
  try { localStorage.setItem("theme", wanted); } catch { /* the choice is not kept */ }
}

document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
let chosen = null;
try { chosen = localStorage.getItem("theme"); } catch { /* none */ }
theme(chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
addEventListener("hashchange", () => { show(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
ask("/api/about").then((found) => {
  Object.assign(about, found);
  document.getElementById("about").textContent = `${found.server} · ${found.version}${found.writes ? "" : " · read only"}`;
  return show();
}).catch((error) => main.replaceChildren(failure(error)));
