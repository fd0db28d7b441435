// A topic's records: searched, followed, downloaded, produced.
import { ask, choice, count, counted, download, failure, field, grid, h, hex, moment, newest, onLeave, pretty, query, send, shown, size, unfolding, visible } from "./parts.js";
import { liveButtons, liveList } from "./live.js";

// A key or value as a text. `as`: by its schema, if there is one; or as it was sent; or as the numbers of its bytes.
export function text(value, as = "decoded") {
  if (value === null) return null;
  if (as === "bytes") return [...bytesOf(value)].map((each) => each.toString(16).padStart(2, "0")).join(" ");
  if (as === "decoded" && value.decoded && value.decoded.text !== undefined) return value.decoded.text + (isCut(value) ? " …" : "");
  const cut = value.encoding === "utf-8" && isCut(value) ? ` … (${size(value.size)})` : "";
  return (value.encoding === "base64" ? "base64 " : "") + value.text + cut;
}

const lengthOf = (words) => new TextEncoder().encode(words).length;
const isCut = (value) => value !== null && (value.decoded?.text !== undefined ? value.decoded.size > lengthOf(value.decoded.text)
  : value.size > value.text.length && value.text.length >= 1000 && lengthOf(value.text) < value.size);
const bytesOf = (value) => (value.encoding === "base64" ? Uint8Array.from(atob(value.text), (each) => each.charCodeAt(0)) : new TextEncoder().encode(value.text));

// The schema of a key or a value, or the reason why it is not decoded.
function told({ decoded }, what) {
  if (!decoded) return "";
  const by = `${what}: ${decoded.format ?? "unknown format"}, schema ${decoded.schema}`;
  return decoded.error === undefined ? h("p", { class: "soft" }, by, decoded.note ? ` (${decoded.note})` : "") : h("p", { class: "error" }, `${by}: ${decoded.error}`);
}

// The whole key or value: decoded, and its bytes.
function whole(value, what) {
  if (value === null) return h("p", { class: "soft" }, `${what}: null`);
  const bytes = bytesOf(value), rest = value.size > bytes.length ? `, the first ${size(bytes.length)} of ${size(value.size)}` : "";
  return [told(value, what), h("pre", {}, visible(pretty(text(value) || ""))), unfolding(`Bytes of the ${what.toLowerCase()}${rest}`, async () => [h("pre", { class: "hex" }, hex(bytes))])];
}

export function browser(at, found) {
  const list = h("div", {}), state = h("p", { class: "soft", role: "status" });
  const from = choice([["newest", "the newest"], ["earliest", "the beginning"], ["offset", "an offset"], ["timestamp", "a time"]]);
  const as = choice([["decoded", "by their schema"], ["text", "text"], ["bytes", "bytes"]], { onchange: () => draw() });
  const where = h("input", { placeholder: "offset, or 2024-09-19T12:00" });
  const partition = h("select", {}, h("option", { value: "" }, "all"), found.partitions.map((each) => h("option", { value: each.partition }, each.partition)));
  const key = h("input", {}), contains = h("input", { type: "search" }), limit = h("input", { type: "number", value: 50, min: 1, max: 500 });
  const condition = h("input", { placeholder: "json->>'$.user' = '7'", spellcheck: "false", class: "mono" });
  const asTable = h("input", { type: "checkbox", onchange: () => draw() });
  const more = h("button", { type: "button", onclick: () => load(true) }, "More");
  const saved = h("button", { type: "button", onclick: () => download(`${found.name}.jsonl`, records.map((each) => `${JSON.stringify(each)}\n`).join(""), "application/x-ndjson") }, "Download");
  let records = [], next = null;
  const begin = newest();
  const wanted = () => ({ partition: partition.value, key: key.value, contains: contains.value, where: condition.value });

  // A record of a live tail has the beginning of a long value: the whole record is asked for when it is opened.
  const complete = async (each) => (isCut(each.value) || (each.key && isCut(each.key)) ? (await ask(`${at}/records${query({ partition: each.partition, offset: each.offset, limit: 1 })}`)).records[0] || each : each);
  const detail = (each) => async () => {
    try {
      const record = await complete(each);
      return [whole(record.value, "Value"), record.key === null ? "" : whole(record.key, "Key"), record.headers.length ? grid([["header", (one) => one.name, "code"], ["value", (one) => text(one.value), "code"]], record.headers, "Headers") : ""];
    } catch (error) { return [failure(error)]; }
  };
  const mark = ({ decoded }) => (decoded?.error === undefined ? "" : h("span", { class: "bad" }, ` not decoded: ${decoded.error}`.slice(0, 160)));
  const columns = [["partition", (each) => each.partition, "number"], ["offset", (each) => each.offset, "number"], ["time (UTC)", (each) => moment(each.timestamp_ms), "time"],
    ["key", (each) => (each.key === null ? null : [visible(text(each.key, as.value).slice(0, 160)), mark(each.key)]), "code"],
    ["value", (each) => (each.value === null ? null : unfolding([visible(text(each.value, as.value).slice(0, 160)) || "(empty)", mark(each.value)], detail(each))), "code long"]];
  const fields = () => {
    const rows = records.map((each) => { try { return [each, JSON.parse(each.value.decoded?.text ?? each.value.text)]; } catch { return [each, null]; } });
    const names = [...new Set(rows.flatMap(([, row]) => (row && typeof row === "object" && !Array.isArray(row) ? Object.keys(row) : [])))].slice(0, 60);
    return grid([...columns.slice(0, 4).map(([title, cell, kind]) => [title, ([each]) => cell(each), kind]), ...names.map((name) => [name, ([, row]) => shown(row?.[name]), "code"])], rows, "Records as rows");
  };
  const filtered = () => key.value || contains.value || condition.value;
  const draw = () => list.replaceChildren(asTable.checked && records.length ? fields() : grid(columns, records, "Records", { empty: filtered()
    ? "No record matches. Change the key, the text or the condition, or begin earlier."
    : `This topic has no record here. ${found.partitioned ? "The rows of a partitioned table are in the topics of its partitions." : "Produce one, or start the live tail and wait."}` }));
  const live = liveButtons(state, (ended) => {
    begin.stop();
    return liveList({ url: `${at}/tail${query(wanted())}`, state, columns, noun: "record", ended });
  }, (made) => list.replaceChildren(made));

  async function load(further) {
    live.stop();
    const signal = begin();
    state.textContent = "Reading …";
    try {
      const asked = { ...wanted(), limit: limit.value }, kind = from.value;
      if (further && next) { if (partition.value) asked.offset = next[partition.value]; }
      else if (kind === "newest") asked.newest = true;
      else if (kind === "offset") asked.offset = where.value;
      else if (kind === "timestamp") asked.timestamp = Date.parse(where.value.includes("Z") || /[+-]\d\d:?\d\d$/.test(where.value) ? where.value : `${where.value}Z`) || where.value;
      const answer = await ask(`${at}/records${query(asked)}`, { signal });
      if (signal.aborted) return;
      records = kind === "newest" ? answer.records.reverse() : answer.records; next = answer.next;
      more.disabled = answer.complete || !partition.value || kind === "newest";
      more.title = partition.value ? "" : "choose a partition to continue from the last record";
      saved.disabled = !records.length;
      const dark = answer.without_leader.length ? `; without a leader, and left out: ${answer.without_leader.join(", ")}` : "";
      state.textContent = `${counted(records.length, "record")} of ${count(answer.looked_at)} looked at${kind === "newest" ? ", the newest first" : ""}${answer.complete ? "" : "; there are more"}${dark}${answer.not_decoded ? `; some were searched by their bytes: ${answer.not_decoded}` : ""}`;
      draw();
    } catch (error) { if (!signal.aborted) { state.textContent = ""; list.replaceChildren(failure(error)); } }
  }
  onLeave(() => { live.stop(); begin.stop(); });
  load(false);
  return h("section", {}, h("form", { onsubmit: (event) => { event.preventDefault(); load(false); } }, field("From", from), field("Offset or time (UTC)", where),
    field("Partition", partition), field("Key", key), field("Value contains", contains), field("Condition (SQL)", condition), field("At most", limit), field("Keys and values as", as),
    h("button", { class: "main", type: "submit" }, "Show"), more, ...live.buttons, saved, field("JSON fields as columns", asTable, "check")), state, list);
}

export function producing(at) {
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
