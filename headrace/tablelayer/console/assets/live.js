// Live lists: new rows on top, drawn with each event, of which the console sends four a second, with a limited number of
// rows on the page.
import { cellsOf, count, counted, grid, h } from "./parts.js";

const ROWS_MAX = 120, AGAIN_MS = 2000;

// Reads server-sent events until it is stopped, and connects again when the connection is lost. Throws what the console says.
async function follow(url, signal, take, say) {
  while (!signal.aborted) {
    let answer = null;
    try { answer = await fetch(url, { signal }); } catch (error) { if (signal.aborted) throw error; }
    if (answer && !answer.ok) throw new Error((await answer.json()).error);
    if (answer) {
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      try {
        for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
          const events = (rest + value).split("\n\n");
          rest = events.pop();
          for (const each of events) {
            const text = each.replace(/^(event: failed\n)?data: /, "");
            if (each.startsWith("event: failed")) throw new Error(JSON.parse(text).error);
            if (text !== each) take(JSON.parse(text));
          }
        }
      } catch (error) { if (signal.aborted || !(error instanceof TypeError)) throw error; }
    }
    say("The connection was lost. Trying again …");
    await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
  }
}

// A live list of `url`, a stream of events. `columns` are those of `grid`, `noun` says what a row is, `kind` (row) is the
// class of a row. `keyOf` (row) returns its key: with `oneOfEachKey()` true, a row replaces the one of its key, at the top.
export function liveList({ url, state, columns, noun, kind, keyOf, oneOfEachKey, ended }) {
  const list = grid(columns, [], "Live", { always: true }), body = list.querySelector("tbody"), byKey = new Map(), leaving = new AbortController();
  list.setAttribute("aria-live", "off");
  list.classList.add("live");
  let waiting = [], paused = false, came = 0, matched = 0, passedOver = 0, drawn = 0, rate = [], notDecoded = null;

  const told = () => {
    const recent = rate.filter(([at]) => at > performance.now() - 3000), since = recent.length > 1 ? (performance.now() - recent[0][0]) / 1000 : 0;
    rate = recent;
    const speed = since > 0.5 ? `, ${count(Math.round(recent.slice(1).reduce((sum, [, each]) => sum + each, 0) / since))} a second` : "";
    const skipped = matched - drawn - waiting.length;
    return `${paused ? "Paused. " : ""}${counted(came, noun)} came${speed}${matched < came ? `, ${count(matched)} match` : ""}`
      + `${skipped > 0 ? `; ${count(skipped)} skipped` : ""}${passedOver ? `; ${count(passedOver)} passed over to keep up` : ""}${notDecoded ? `; some were searched by their bytes: ${notDecoded}` : ""}`;
  };
  const draw = () => {
    state.textContent = told();
    if (paused || !waiting.length) return;
    const made = [];
    for (const each of waiting) {
      const key = keyOf && oneOfEachKey() ? keyOf(each) : null;
      if (key !== null && byKey.has(key)) { const old = byKey.get(key); old.remove(); const at = made.indexOf(old); if (at >= 0) made.splice(at, 1); }
      const row = h("tr", { role: "row", class: kind ? kind(each) : null }, cellsOf(columns, each));
      if (key !== null) { byKey.delete(key); byKey.set(key, row); row.dataset.key = key; }
      made.unshift(row);
    }
    drawn += waiting.length;
    waiting = [];
    body.prepend(...made);
    for (let last = body.lastElementChild; last && body.childElementCount > ROWS_MAX;) {
      const before = last.previousElementSibling;
      if (!last.querySelector("details[open]")) { if (last.dataset.key) byKey.delete(last.dataset.key); last.remove(); }
      last = before;
    }
  };
  const take = (found) => {
    came += found.came; matched += found.matched; passedOver += found.passed_over; notDecoded = found.not_decoded;
    rate.push([performance.now(), found.came]);
    waiting = [...waiting, ...found.rows].slice(-ROWS_MAX);
    draw();
  };
  const stop = () => leaving.abort();
  follow(url, leaving.signal, take, (text) => { state.textContent = text; }).catch((error) => { if (!leaving.signal.aborted) { stop(); ended(error.message); } });
  return { list, stop, told, pause: (wanted) => { paused = wanted; draw(); } };
}

// Buttons that start, pause and stop a live list. `begin` returns a new one, given its `ended`; `shown` shows its element.
export function liveButtons(state, begin, shown) {
  let live = null;
  const pause = h("button", { type: "button", hidden: true, "aria-pressed": "false", onclick: () => setPaused(pause.getAttribute("aria-pressed") === "false") }, "Pause");
  const start = h("button", { type: "button", "aria-pressed": "false", onclick: () => (live ? stop("Stopped. ") : run()) }, "Live tail");
  const setPaused = (wanted) => { pause.setAttribute("aria-pressed", String(wanted)); pause.textContent = wanted ? "Resume" : "Pause"; live.pause(wanted); };
  const turn = (on) => { start.textContent = on ? "Stop" : "Live tail"; start.setAttribute("aria-pressed", String(on)); pause.hidden = !on; };
  function run() {
    live = begin((error) => { stop(); state.textContent = error; });
    state.textContent = "Waiting for what comes …";
    turn(true);
    shown(live.list);
  }
  function stop(word) {
    if (!live) return;
    live.stop();
    if (word) state.textContent = word + live.told();
    live = null; pause.setAttribute("aria-pressed", "false"); pause.textContent = "Pause";
    turn(false);
  }
  return { buttons: [start, pause], stop };
}
