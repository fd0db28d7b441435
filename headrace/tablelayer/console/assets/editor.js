// The SQL editor: CodeMirror with the words of the console's SQL. It lives in a shadow root, because its style sheets are
// adopted there; the page's security policy allows no style element.
import { Compartment, EditorState, EditorView, HighlightStyle, Prec, SQLDialect, autocompletion, bracketMatching, closeBrackets, closeBracketsKeymap, closeCompletion, completionKeymap,
  defaultKeymap, history, historyKeymap, keymap, placeholder, sql, syntaxHighlighting, tags } from "./vendor/codemirror.js";
import { h } from "./parts.js";

const dialect = SQLDialect.define({
  keywords: "all and any as asc between by case cast columns cross current_date current_timestamp desc describe distinct else end escape except exclude exists explain extract false "
    + "filter first following for from full group grouping having ilike in inner intersect interval is join last lateral left like limit natural not null nulls offset on or order outer over "
    + "partition pivot preceding qualify replace right rollup row rows select sets show similar some summarize system_time table tables tablesample then time timestamp topics true "
    + "unbounded union unnest unpivot using values when where window with",
  types: "bigint binary boolean bytes char date decimal double float int integer json smallint string struct time timestamp timestamp_ltz timestamptz tinyint varbinary varchar",
  builtin: "abs any_value approx_count_distinct arg_max arg_min avg bool_and bool_or ceil coalesce concat count date_diff date_part date_trunc dense_rank epoch_ms first floor greatest json_extract "
    + "json_extract_string lag last lead least length list list_contains lower ltrim max median min mode now nullif quantile_cont range rank regexp_extract regexp_matches regexp_replace replace reverse "
    + "round row_number rtrim split_part starts_with stddev strftime string_agg strptime substring sum time_bucket to_timestamp trim try_cast upper",
  doubleDollarQuotedStrings: true,
});

const look = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "var(--card)", border: "1px solid var(--line)", borderRadius: ".4rem", fontSize: ".95rem" },
  "&.cm-focused": { outline: "3px solid var(--accent)", outlineOffset: "1px" },
  ".cm-scroller": { fontFamily: 'ui-monospace, "DejaVu Sans Mono", monospace', lineHeight: "1.5", maxHeight: "24rem", overflow: "auto" },
  ".cm-content": { minHeight: "7.5rem", padding: ".5rem", caretColor: "var(--text)" },
  ".cm-line": { padding: "0" },
  ".cm-placeholder": { color: "var(--soft)" },
  ".cm-matchingBracket, &.cm-focused .cm-matchingBracket": { backgroundColor: "var(--code)", outline: "1px solid var(--soft)" },
  ".cm-tooltip": { backgroundColor: "var(--card)", color: "var(--text)", border: "1px solid var(--line)", borderRadius: ".3rem" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--accent)", color: "var(--on-accent)" },
  ".cm-completionDetail": { fontStyle: "normal", opacity: "1" },
});
const colours = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--word)", fontWeight: "600" }, { tag: [tags.typeName, tags.standard(tags.name)], color: "var(--accent)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--good)" }, { tag: [tags.number, tags.bool, tags.null], color: "var(--number)" },
  { tag: [tags.lineComment, tags.blockComment], color: "var(--soft)", fontStyle: "italic" },
]);

// Completes columns of the tables that the text names. CodeMirror itself completes them behind `table.` alone.
const columnsIn = (schema) => (context) => {
  const word = context.matchBefore(/\w+/);
  if (!word || /[."]/.test(context.state.sliceDoc(word.from - 1, word.from))) return null;
  const named = new Set(context.state.doc.toString().match(/\w[\w-]*/g));
  const options = Object.values(schema).flatMap((tables) => Object.entries(tables)).filter(([table]) => named.has(table)).flatMap(([, columns]) => columns.map((each) => ({ ...each, boost: 1 })));
  return options.length ? { from: word.from, options, validFor: /^\w*$/ } : null;
};

// `run` is called by Ctrl+Enter. Returns the element, and functions for its text, its tables and the keyboard.
export function makeEditor({ label, hint, text, run }) {
  const element = h("div", { class: "editor" }), root = element.attachShadow({ mode: "open" }), known = new Compartment();
  const language = (schema) => [sql({ dialect, schema, defaultSchema: "default", upperCaseKeywords: true }), dialect.language.data.of({ autocomplete: columnsIn(schema) })];
  const view = new EditorView({ root, parent: root, state: EditorState.create({ doc: text, extensions: [
    Prec.highest(keymap.of([{ key: "Mod-Enter", run: () => { run(); return true; } }])),
    keymap.of([...closeBracketsKeymap, ...completionKeymap, ...historyKeymap, ...defaultKeymap]),
    history(), bracketMatching(), closeBrackets(), autocompletion(), known.of(language({})), syntaxHighlighting(colours), look, placeholder(hint), EditorView.lineWrapping,
    EditorView.domEventHandlers({ blur: (_, own) => { closeCompletion(own); } }), // in a shadow root it stays open otherwise
    EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false", autocapitalize: "off" }),
  ] }) });
  return {
    element,
    get text() { return view.state.doc.toString(); },
    set text(wanted) { view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: wanted }, selection: { anchor: wanted.length } }); view.focus(); },
    insert(words) { view.dispatch(view.state.replaceSelection(words)); view.focus(); },
    tables(schema) { view.dispatch({ effects: known.reconfigure(language(schema)) }); },
    end() { view.destroy(); },
  };
}
