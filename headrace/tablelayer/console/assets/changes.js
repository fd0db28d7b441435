// A table's changes as they come: rows that move to the top, by kind of change.
import { field, h, moment, onLeave, query, shown } from "./parts.js";
import { liveButtons, liveList } from "./live.js";

const KINDS = { "+I": "inserted", "+A": "inserted", "-U": "before", "+U": "updated", "-D": "deleted" };
const WORDS = { "+I": "insert", "+A": "append", "-U": "before", "+U": "update", "-D": "delete" };

export function changes(at, found, keyed) {
  const state = h("p", { class: "soft", role: "status" }, "Start the live tail to see changes as they come."), list = h("div", {});
  const condition = h("input", { placeholder: `${found.columns[0].name} IS NOT NULL`, spellcheck: "false", class: "mono" }), one = h("input", { type: "checkbox" });
  const places = found.primary_key.map((name) => found.columns.findIndex((each) => each.name === name));
  const columns = [["change", (each) => h("span", { class: "kind" }, `${each.change} ${WORDS[each.change]}`)], ["time (UTC)", (each) => moment(each.timestamp_ms), "time"],
    ...(found.partitioned_by.length ? [["partition", (each) => each.partition]] : []), ["bucket", (each) => each.bucket, "number"], ["offset", (each) => each.offset, "number"],
    ...found.columns.map((column, index) => [column.name, (each) => shown(each.row[index]), "code"])];
  const live = liveButtons(state, (ended) => liveList({ url: `${at}/tail${query({ where: condition.value })}`, state, columns, noun: "change", ended,
    kind: (each) => KINDS[each.change], keyOf: keyed ? (each) => JSON.stringify([each.partition, ...places.map((place) => each.row[place])]) : null, oneOfEachKey: () => one.checked }),
  (made) => list.replaceChildren(made));
  onLeave(() => live.stop());
  return h("section", {}, h("form", { onsubmit: (event) => event.preventDefault() }, field("Condition (SQL)", condition), ...live.buttons,
    keyed ? field("one row for each key", one, "check") : ""), state, list);
}
