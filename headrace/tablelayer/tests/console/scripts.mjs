// Checks of the page's scripts without a browser: `node scripts.mjs NAME`, over a small stand-in for the document.
import assert from "node:assert/strict";

class Node {
  constructor(name, text = "") { Object.assign(this, { name, text, childNodes: [], attributes: {}, listeners: {}, dataset: {}, hidden: false, disabled: false, value: "" }); }
  get textContent() { return this.name ? this.childNodes.map((each) => each.textContent).join("") : this.text; }
  set textContent(text) { this.replaceChildren(text); }
  append(...parts) { this.childNodes.push(...parts.map((each) => (each instanceof Node ? each : new Node(null, String(each))))); }
  replaceChildren(...parts) { this.childNodes = []; this.append(...parts); }
  setAttribute(name, value) { this.attributes[name] = value; }
  addEventListener(name, act) { this.listeners[name] = act; }
  focus() {}
  all(name) { return this.childNodes.flatMap((each) => [...(each.name === name ? [each] : []), ...each.all(name)]); }
  querySelectorAll(words) { return words.split(" ").reduce((found, name) => found.flatMap((each) => each.all(name)), [this]); }
}
Object.assign(globalThis, { Node, document: { createElement: (name) => new Node(name) } });

const { count, grid, h, hex, listing, moment, pretty, query, size, span, sure, visible } = await import("../../console/assets/parts.js");
const { text } = await import("../../console/assets/records.js");
const { revocation } = await import("../../console/assets/users.js");

const cells = (made) => made.all("tbody")[0].all("tr").map((row) => row.all("td")[0].textContent);
const utf8 = (words, size = words.length) => ({ text: words, encoding: "utf-8", size });

const CHECKS = {
  numbers() {
    assert.deepEqual([count(1234567.89), count(0), count(null), count(-1)], ["1,234,567.9", "0", "–", "–"]);
    assert.deepEqual([size(1023), size(1024), size(1536 * 1024), size(-1)], ["1023 B", "1.0 KiB", "1.5 MiB", "–"]);
    assert.deepEqual([span(1499), span(119_999), span(120_000), span(172_800_000)], ["1 s", "120 s", "2 min", "2 d"]);
    assert.equal(moment(1_726_704_000_001), "2024-09-19 00:00:00.001");
    assert.equal(query({ a: "", b: 0, c: null, d: "x y&" }), "?b=0&d=x+y%26");
    assert.equal(pretty('{"n":9007199254740993,"m":1.10}'), '{\n  "n": 9007199254740993,\n  "m": 1.10\n}');
    assert.equal(pretty("{"), "{");
  },
  records() {
    const decoded = { ...utf8("\0\0\0\0\x07\x0e"), decoded: { schema: 7, format: "Avro", text: '{"id":7}', size: 8 } };
    const failed = { ...utf8("\0x"), decoded: { schema: 9, format: null, error: "Schema 9 not found" } };
    assert.deepEqual([text(decoded), text(decoded, "text"), text(decoded, "bytes")], ['{"id":7}', "\0\0\0\0\x07\x0e", "00 00 00 00 07 0e"]);
    assert.deepEqual([text(failed), text(null), text({ text: "/w==", encoding: "base64", size: 1 })], ["\0x", null, "base64 /w=="]);
    assert.equal(text({ text: "/wA=", encoding: "base64", size: 2 }, "bytes"), "ff 00");
    assert.equal(text(utf8("é".repeat(2000), 4000)), "é".repeat(2000));
    assert.match(text(utf8("x".repeat(4096), 10_000)), / … \(9\.8 KiB\)$/);
    assert.match(text({ ...decoded, decoded: { ...decoded.decoded, size: 9 } }), /\} …$/);
    assert.equal(visible("\0a\t\n\x1b["), "\\x00a\t\n\\x1b[");
    assert.equal(hex(new Uint8Array([...Array(16).fill(65), 255])), `000000  ${"41 ".repeat(16)} ${"A".repeat(16)}\n000010  ff${" ".repeat(47)}.`);
  },
  lists() {
    const rows = [9, 10, null, 1.5, 1.25].map((n) => ({ n }));
    const made = listing([["n", (row) => (row.n === null ? null : `${row.n} B`), "number", (row) => row.n], ["word", (row) => `w${row.n}`]], rows, "Rows", { filter: true, page: 3 });
    const sorted = () => { made.all("th")[0].all("button")[0].listeners.click(); return cells(made); };
    const shown = () => made.all("span").at(-1).textContent;
    assert.deepEqual([cells(made), shown()], [["9 B", "10 B", "null"], "1 to 3 of 5"]);
    assert.deepEqual([sorted(), sorted()], [["1.25 B", "1.5 B", "9 B"], ["10 B", "9 B", "1.5 B"]]);
    const [back, on] = made.all("button").slice(-2);
    assert.deepEqual([back.disabled, on.disabled], [true, false]);
    on.listeners.click();
    assert.deepEqual([cells(made), shown(), back.disabled, on.disabled], [["1.25 B", "null"], "4 to 5 of 5", false, true]);
    const many = listing([["word", (row) => row]], ["Apple", "pear", "plum", "fig", "kiwi", "lime"], "Fruit", { filter: true });
    const input = many.all("input")[0];
    input.value = "P";
    input.listeners.input();
    assert.deepEqual(cells(many), ["Apple", "pear", "plum"]);
    assert.equal(grid([["x", () => ""]], [], "Empty", { empty: "Make one." }).textContent, "Make one.");
    const acts = listing([["word", (row) => row], ["change", () => h("button", {}, "Delete"), "act"]], ["pear", "fig"], "Fruit");
    assert.deepEqual(acts.all("th").map((each) => each.all("button").length), [1, 0]);
    assert.equal(acts.all("table")[0].attributes.class, "as-cards");
    const bold = h("p", {}, "<b>", null, false, [["nested"]], 0);
    assert.deepEqual([bold.textContent, bold.childNodes.length], ["<b>nested0", 3]);
  },
  buttons() {
    let acted = 0;
    const made = sure("Delete", () => { acted += 1; }), { click, blur, keydown } = made.listeners;
    const pressed = (...events) => { for (const each of events) each(); return [made.textContent, acted]; };
    assert.deepEqual(pressed(click), ["Really delete?", 0]);
    assert.deepEqual(pressed(blur, click, () => keydown({ key: "Escape" })), ["Delete", 0]);
    assert.deepEqual(pressed(click, () => keydown({ key: "Enter" }), click), ["Delete", 1]);
    assert.deepEqual(pressed(click), ["Really delete?", 1]);
  },
  rights() {
    const right = { principal: "User:ann", privilege: "INSERT, UPDATE", on: "table shop.a", columns: [], denied: false, host: "*" };
    assert.deepEqual(revocation(right), { principal: "User:ann", privileges: ["INSERT", "UPDATE"], on: "shop.a", columns: [] });
    assert.deepEqual([{ denied: true }, { host: "10.0.0.1" }, { on: "group g" }].map((each) => revocation({ ...right, ...each })), [null, null, null]);
  },
};

CHECKS[process.argv[2]]();
console.log("checked");
