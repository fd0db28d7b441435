// Users with a password, rights on tables, Kafka's ACLs and client quotas, with the forms that change them.
import { about, acting, ask, choice, count, counted, failure, field, grid, h, listing, newest, onLeave, query, send, sure, tabs } from "./parts.js";

const TABS = [["users", "Users"], ["rights", "Rights on tables"], ["acls", "ACLs"], ["quotas", "Quotas"]];
const OPEN = "The server has no authorizer: every client that can connect has all rights.";
const list = (text) => text.split(",").map((each) => each.trim()).filter(Boolean);

export async function users([tab = "users"]) {
  const page = { users: withPasswords, rights, acls, quotas }[tab];
  if (!page) throw new Error(`There is no page ${tab} of users.`);
  return [h("h1", {}, "Users and rights"), tabs("#/users", TABS, tab), await page()];
}

// A list that is read again after each change. `draw` (answer, act) returns its elements; act(path, body, done) sends a change.
async function changing(path, draw) {
  const place = h("div", {}), said = h("div", { role: "status" });
  const fill = async () => { place.replaceChildren(...[draw(await ask(path), act)].flat(9)); };
  const act = async (to, body, done) => { try { await send(to, body); await fill(); said.replaceChildren(h("p", { class: "good" }, done)); } catch (error) { said.replaceChildren(failure(error)); } };
  await fill();
  return { list: h("section", {}, place, said), fill };
}

async function withPasswords() {
  const made = await changing("/api/users", (found, act) => listing([["user", (each) => each.name, "code"], ["mechanisms", (each) => each.mechanisms.join(", ")],
    ...(about.writes ? [["change", (each) => sure("Delete", () => act("/api/users/delete", { name: each.name }, `${each.name} was deleted.`)), "act"]] : [])], found.users, "Users",
  { filter: true, empty: "There is no user with a password. Without one, clients authenticate by other mechanisms, or not at all." }));
  if (!about.writes) return made.list;
  const name = h("input", { required: true, autocomplete: "off" }), password = h("input", { type: "password", required: true, autocomplete: "new-password" });
  return [made.list, acting("Add a user, or change its password", [field("User", name), field("Password", password)], "Add or change", async () => {
    const done = await send("/api/users", { name: name.value, password: password.value });
    password.value = "";
    await made.fill();
    return done.made ? `${done.name} was added, for SCRAM-SHA-256 and SCRAM-SHA-512.` : `${done.name} has a new password.`;
  })];
}

// The request that revokes a right. Only rights on a table or a database, from any host, have one.
export function revocation(each) {
  const [, kind, on] = /^(table|database) (.+)$/.exec(each.on) || [];
  return kind && !each.denied && each.host === "*" ? { principal: each.principal, privileges: each.privilege.split(", "), on, columns: each.columns } : null;
}

async function rights() {
  const made = await changing("/api/users", (found, act) => (found.protected ? listing([["principal", (each) => each.principal, "code"],
    ["effect", (each) => h("span", { class: each.denied ? "bad" : "good" }, each.denied ? "denied" : "allowed")],
    ["privilege", (each) => each.privilege + (each.columns.length ? ` (${each.columns.join(", ")})` : "")], ["on", (each) => each.on, "code"], ["from host", (each) => each.host, "code"],
    ...(about.writes ? [["change", (each) => (revocation(each) ? sure("Revoke", () => act("/api/grants/revoke", revocation(each), "The right was revoked.")) : ""), "act"]] : [])], found.grants, "Rights",
  { filter: true, empty: "No right is granted: only super users may do anything." }) : h("p", { class: "soft" }, OPEN)));
  if (!about.writes) return made.list;
  const who = h("input", { required: true, placeholder: "User:ann" }), what = h("input", { required: true, placeholder: "SELECT, INSERT" }), on = h("input", { required: true, placeholder: "db.table or db" }), columns = h("input", { placeholder: "all" });
  return [made.list, acting("Grant", [field("Principal", who), field("Privileges", what), field("On", on), field("Columns", columns)], "Grant", async () => {
    const done = await send("/api/grants", { principal: who.value, privileges: list(what.value), on: on.value, columns: list(columns.value) });
    await made.fill();
    return `${counted(done.granted, "privilege")} granted.`;
  })];
}

// The parts of an ACL with their names in Kafka's tools.
const ACL = { resource_type: "Resource type", name: "Resource name", pattern: "Pattern type", principal: "Principal", host: "Host", operation: "Operation", permission: "Permission" };

async function acls() {
  const place = h("div", {}), begin = newest(), said = h("div", { role: "status" });
  onLeave(begin.stop);
  const first = await ask("/api/acls");
  if (!first.protected) return h("section", {}, h("p", { class: "soft" }, OPEN));
  const any = (words) => choice([["", "any"], ...words]);
  const wanted = { principal: h("input", { placeholder: "any" }), resource: any(first.types), name: h("input", { placeholder: "any" }), operation: any(first.operations) };
  const draw = (found) => place.replaceChildren(listing([...Object.entries(ACL).map(([part, title]) => [title.toLowerCase(), (each) => (part === "permission" ? h("span", { class: each.permission === "DENY" ? "bad" : "good" }, each.permission) : each[part]), "code"]),
    ...(about.writes ? [["change", (each) => sure("Delete", async () => {
      try { await send("/api/acls/delete", Object.fromEntries(Object.keys(ACL).map((part) => [part, each[part]]))); await fill(); said.replaceChildren(h("p", { class: "good" }, "The ACL was deleted.")); } catch (error) { said.replaceChildren(failure(error)); }
    }), "act"]] : [])], found.acls, "ACLs", { empty: "No ACL matches. Without one, only super users may do anything." }));
  const fill = async () => {
    const signal = begin();
    const found = await ask(`/api/acls${query(Object.fromEntries(Object.entries(wanted).map(([name, input]) => [name, input.value])))}`, { signal });
    if (!signal.aborted) draw(found);
  };
  draw(first);
  const page = [h("section", {}, h("form", { "aria-label": "Find ACLs", onsubmit: (event) => { event.preventDefault(); said.replaceChildren(); fill().catch((error) => { if (!begin.current().aborted) place.replaceChildren(failure(error)); }); } },
    field(ACL.resource_type, wanted.resource), field(ACL.name, wanted.name), field(ACL.principal, wanted.principal), field(ACL.operation, wanted.operation), h("button", { class: "main", type: "submit" }, "Show")), place, said)];
  if (!about.writes) return page;
  const own = { principal: h("input", { required: true, placeholder: "User:ann" }), permission: choice(first.permissions), operation: choice(first.operations), resource_type: choice(first.types),
    name: h("input", { required: true, placeholder: "clicks, or * for all" }), pattern: choice([["LITERAL", "LITERAL: this name"], ["PREFIXED", "PREFIXED: names that begin so"]]), host: h("input", { required: true, value: "*" }) };
  const kind = own.resource_type;
  kind.addEventListener("change", () => { if (kind.value === "CLUSTER") own.name.value = "kafka-cluster"; });
  return [...page, acting("Create an ACL", Object.entries(ACL).map(([part, title]) => field(title, own[part])), "Create", async () => {
    await send("/api/acls", Object.fromEntries(Object.keys(ACL).map((each) => [each, own[each].value])));
    await fill();
    return "The ACL was created.";
  })];
}

const UNITS = { producer_byte_rate: "bytes a second", consumer_byte_rate: "bytes a second", request_percentage: "% of a thread", controller_mutation_rate: "changes a second", connection_creation_rate: "connections a second" };

async function quotas() {
  const first = await ask("/api/quotas");
  const made = await changing("/api/quotas", (found, act) => listing([...found.kinds.map((kind) => [kind, (each) => (kind in each.entity ? each.entity[kind] ?? h("i", {}, "default") : ""), "code"]),
    ["limit", (each) => each.key, "code"], ["value", (each) => count(each.value), "number", (each) => each.value], ["unit", (each) => UNITS[each.key] || ""],
    ...(about.writes ? [["change", (each) => sure("Remove", () => act("/api/quotas", { entity: each.entity, remove: [each.key] }, `${each.key} was removed.`)), "act"]] : [])],
  found.quotas.flatMap((each) => Object.entries(each.limits).map(([key, value]) => ({ entity: each.entity, key, value }))), "Quotas", { filter: true, empty: "There is no quota: nothing limits a client but the server itself." }));
  if (!about.writes) return made.list;
  const names = first.kinds.map((kind) => [kind, choice([["", "all"], ["default", "the default"], ["name", "named"]]), h("input", { "aria-label": `Name of the ${kind}`, autocomplete: "off" })]);
  const key = choice(first.limits), value = h("input", { type: "number", min: 0, step: "any", required: true });
  for (const [, how, name] of names) { name.hidden = true; how.addEventListener("change", () => { name.hidden = how.value !== "name"; }); }
  return [made.list, acting("Set a quota", [...names.map(([kind, how, name]) => [field(kind, how), name]), field("Limit", key), field("Value", value)], "Set", async () => {
    const entity = Object.fromEntries(names.filter(([, how]) => how.value).map(([kind, how, name]) => [kind, how.value === "name" ? name.value : null]));
    await send("/api/quotas", { entity, set: { [key.value]: Number(value.value) } });
    await made.fill();
    return `${key.value} was set.`;
  })];
}
