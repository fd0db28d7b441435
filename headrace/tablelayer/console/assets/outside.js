// Other programs beside the cluster: the schema registry and Kafka Connect.
import { about, ask, choice, counted, failure, field, grid, h, listing, newest, onLeave, part, pretty, query, send, unfolding } from "./parts.js";

export async function schemas([subject]) {
  if (subject) return ofSubject(subject);
  const found = await ask("/api/schemas");
  return [h("h1", {}, "Schema registry"), h("p", { class: "soft" }, `${found.url}, compatibility ${found.compatibility ?? "unknown"}.`),
    h("section", {}, listing([["subject", (each) => h("a", { href: `#/schemas/${part(each)}` }, each)]], found.subjects, "Subjects", { filter: true, empty: "The registry has no subject yet. A producer with a serializer for it registers its first schema." }))];
}

async function ofSubject(subject) {
  const at = `/api/schemas/${part(subject)}`, place = h("div", {}), begin = newest();
  onLeave(begin.stop);
  const found = await ask(at);
  const versions = choice(found.versions.toReversed(), { onchange: async () => {
    const signal = begin();
    try { const other = await ask(`${at}${query({ version: versions.value })}`, { signal }); if (!signal.aborted) draw(other); } catch (error) { if (!signal.aborted) place.replaceChildren(failure(error)); }
  } });
  const draw = (each) => place.replaceChildren(h("p", { class: "soft" }, `Schema ${each.id}`), h("pre", {}, pretty(each.schema || "")),
    each.references.length ? grid([["refers to", (one) => one.name, "code"], ["subject", (one) => h("a", { href: `#/schemas/${part(one.subject)}` }, one.subject)], ["version", (one) => one.version, "number"]], each.references, "References") : "");
  draw(found);
  return [h("h1", {}, found.subject, " ", h("span", { class: "tag" }, found.type)), h("p", { class: "soft" }, `${counted(found.versions.length, "version")}, compatibility ${found.compatibility ?? "unknown"}.`),
    h("section", {}, h("form", { onsubmit: (event) => event.preventDefault() }, field("Version", versions)), place)];
}

// A state in its colour: good, bad, or neither, such as that of a paused connector.
const stateOf = (state) => h("span", { class: { RUNNING: "good", FAILED: "bad" }[state] || null }, state ? state.toLowerCase() : "unknown");
const tasksOf = (tasks) => {
  const failed = tasks.filter((each) => each.state === "FAILED").length, running = tasks.filter((each) => each.state === "RUNNING").length;
  return [tasks.length ? `${running} of ${tasks.length} run` : "none", failed ? h("span", { class: "bad" }, `, ${failed} failed`) : ""];
};

export async function connectors([name]) {
  if (name) return connector(name);
  const found = await ask("/api/connectors");
  return [h("h1", {}, "Connectors"), h("p", { class: "soft" }, `Kafka Connect ${found.version ?? ""} at ${found.url}.`),
    h("section", {}, listing([["connector", (each) => h("a", { href: `#/connectors/${part(each.name)}` }, each.name)], ["kind", (each) => each.kind ?? ""], ["state", (each) => stateOf(each.state), "", (each) => each.state],
      ["tasks", (each) => h("span", {}, tasksOf(each.tasks))], ["worker", (each) => each.worker ?? "", "code"], ["class", (each) => each.class ?? "", "code"]], found.connectors, "Connectors",
    { filter: true, empty: "Kafka Connect runs no connector." }))];
}

async function connector(name) {
  const at = `/api/connectors/${part(name)}`, page = h("div", {}), said = h("div", { role: "status" }), begin = newest();
  const again = (title, body, done) => h("button", { type: "button", onclick: async () => {
    try { await send(`${at}/restart`, body); said.replaceChildren(h("p", { class: "good" }, done)); await fill(); } catch (error) { said.replaceChildren(failure(error)); }
  } }, title);
  const trace = (text) => (text ? unfolding(text.split("\n")[0].slice(0, 160), async () => [h("pre", {}, text)]) : "");
  const draw = (found) => page.replaceChildren(
    h("section", {}, grid([["", (each) => each[0]], ["", (each) => each[1]]], [["state", stateOf(found.state)], ["kind", found.kind ?? "–"], ["worker", found.worker ?? "–"], ["class", found.class ?? "–"],
      ["topics", found.topics.length ? found.topics.flatMap((each, index) => [index ? ", " : "", h("a", { href: `#/topics/${part(each)}` }, each)]) : "none yet"]], "Connector", { headless: true }), trace(found.trace)),
    h("section", {}, h("h2", {}, "Tasks"), grid([["task", (each) => each.task, "number"], ["state", (each) => stateOf(each.state)], ["worker", (each) => each.worker ?? ""], ["error", (each) => trace(each.trace), "long"],
      ...(about.writes ? [["change", (each) => again("Restart", { task: each.task }, `Task ${each.task} is restarted.`), "act"]] : [])], found.tasks, "Tasks", { empty: "The connector has no task." })),
    h("section", {}, h("h2", {}, "Configuration"), grid([["configuration", (each) => each.name, "code"], ["value", (each) => (each.sensitive ? "(hidden)" : each.value), "code"]], found.configs, "Configuration")));
  const fill = async () => { const signal = begin(), found = await ask(at, { signal }); if (!signal.aborted) draw(found); };
  await fill();
  const timer = setInterval(() => page.querySelector("details[open]") || fill().catch((error) => { if (!begin.current().aborted) said.replaceChildren(failure(error)); }), 5000);
  onLeave(() => { begin.stop(); clearInterval(timer); });
  return [h("h1", {}, name), about.writes ? h("section", {}, h("div", { class: "pager" }, again("Restart the connector", {}, "The connector is restarted."), again("Restart it with its failed tasks", { tasks: true, failed: true }, "The connector and its failed tasks are restarted."))) : "", said, page];
}
