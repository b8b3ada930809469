"use strict";
/* The page: curves on top, the episodes of a step below. Text of a model is inserted only as text nodes. */

const $ = (id) => document.getElementById(id);
const EVERY_MS = 2500, AT_REST_MS = 15000; // how often to poll a run in progress, and any other
const MARKS = { up: "\u25b2", down: "\u25bc", good: "\u25cf", bad: "\u25cb", open: "\u25c7" };
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, HARMLESS = "\n\t\u200c\u200d", MOST_MARKS = 2000;
const KEYS = [
  ["\u2190 \u2192", "step before, step after (with Shift: ten steps)"], ["Home End", "first step, last step"],
  ["j k", "next case, case before"], ["/", "search"], ["a", "filter and search in all steps, or in this one"],
  ["p", "keep this case and compare it with the next"], ["s", "the same problem at other steps"],
  ["1 2 3", "groups of charts"], ["t", "light, dark, or as the system"], ["Esc", "drop the kept case, close"], ["?", "this list"],
];

/* The source of the data: a server, or this file itself. */
const held = $("held") && JSON.parse($("held").textContent);
const bundled = held && {
  run: async (run) => held[run].overview,
  step: async (run, step) => ({ cases: held[run].cases[step] || [] }),
  case: async (run, step, id) => (held[run].cases[step] || []).find((each) => each.id === id),
  problem: async (run, id) => {
    const steps = Object.entries(held[run].cases).filter(([, cases]) => cases.some((each) => each.problem_id === id));
    return { steps: steps.map(([step]) => Number(step)) };
  },
  find: async (run, about) => {
    const words = about.q.toLowerCase(), steps = Object.keys(held[run].cases).map(Number);
    const within = steps.filter((step) => step >= about.from && (about.to === undefined || step <= about.to));
    const texts = (each) => [each.problem, each.problem_id, ...each.parts.flatMap((p) => [p.text, p.seen, p.answer, p.reason])];
    const fits = (each) => !about.filter || each.kind === about.filter || each.flags.includes(about.filter);
    const says = (each) => !words || texts(each).some((text) => String(text ?? "").toLowerCase().includes(words));
    const cases = within.flatMap((step) => held[run].cases[step].filter((each) => fits(each) && says(each)));
    return { cases, next: null, looked: steps.length, steps: steps.length };
  },
  stamp: async () => ({ stamps: held.map((each) => each.overview.stamp) }),
};
async function ask(question, about) {
  const given = Object.entries(about).filter(([, value]) => value !== undefined && value !== "");
  const answer = await fetch(`api/${question}?${new URLSearchParams(given)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error);
  return found;
}
const source = bundled || {
  run: (run) => ask("run", { run }),
  step: (run, step) => ask("step", { run, step }),
  case: (run, step, id) => ask("case", { run, step, id }),
  problem: (run, id) => ask("problem", { run, id }),
  find: (run, about) => ask("find", { run, ...about }),
  text: (run, line, part) => ask("text", { run, line, part }),
  stamp: () => ask("stamp", {}),
};

/* State. `runs` are overviews; `step` is the step shown, and follows the last one until the user chooses one. */
const state = { runs: [], run: 0, step: null, follow: true, group: null, filter: "", words: "", all: false, cases: [], open: null, kept: null, want: 0 };
let charts = [], asked = 0, stamp = "", timer = 0;

/* A new element with a class and children. */
function made(name, kind, ...inner) {
  const element = document.createElement(name);
  if (kind) element.className = kind;
  element.append(...inner.filter((each) => each !== null && each !== undefined));
  return element;
}

function button(label, act, title) {
  const element = made("button", "", label);
  element.type = "button";
  if (title) element.title = title;
  element.addEventListener("click", act);
  return element;
}

/* Put a text into an element as text nodes; invisible and direction-changing characters become visible. */
function put(element, text) {
  let last = 0, marks = 0;
  for (const found of String(text).matchAll(HIDDEN)) {
    if (HARMLESS.includes(found[0]) || ++marks > MOST_MARKS) continue;
    const code = found[0].codePointAt(0), name = `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
    const mark = made("span", "control", code < 32 ? String.fromCodePoint(0x2400 + code) : name);
    mark.title = name;
    element.append(text.slice(last, found.index), mark);
    last = found.index + found[0].length;
  }
  element.append(String(text).slice(last));
  return element;
}
const said = (name, kind, text) => put(made(name, kind), text);

function fail(error) {
  $("failure").hidden = !error;
  $("failure").textContent = error ? (error instanceof TypeError ? "The server has stopped: this page shows the last data." : error.message) : "";
}

/* Facts */

async function load() {
  const first = await source.run(0), more = [];
  const count = bundled ? held.length : (await source.stamp()).stamps.length;
  for (let run = 1; run < count; run += 1) more.push(await source.run(run));
  state.runs = [first, ...more];
  stamp = state.runs.map((each) => each.stamp).join("\n");
  fail(null);
  title();
  drawCharts();
  stepper();
}

async function watch() {
  try {
    const now = (await source.stamp()).stamps.join("\n");
    if (now !== stamp) {
      await load();
      if (state.follow) await choose(lastStep(), { follow: true });
    } else fail(null);
  } catch (error) { fail(error); }
  const going = state.runs.some((each) => ["running", "not begun"].includes(each.stage));
  timer = setTimeout(watch, going ? EVERY_MS : AT_REST_MS);
}

function title() {
  const [run, other] = state.runs, of = run.asked_for ? ` of ${run.asked_for.toLocaleString("en")}` : "";
  document.title = `${run.name} \u2013 lite-selfplay`;
  $("title").textContent = other ? `${run.name} and ${other.name}` : run.name;
  const parts = [`${run.game} on ${run.model}`, run.tasks, `${run.played.toLocaleString("en")}${of} steps`, run.best && `best ${run.best}`];
  $("about").textContent = parts.filter(Boolean).join("  \u00b7  ");
  $("stage").textContent = run.stage;
  $("stage").className = run.stage;
  const remarks = state.runs.flatMap((each) => each.remarks);
  $("remarks").hidden = !remarks.length;
  $("remarks").firstElementChild.textContent = `${remarks.length} remark${remarks.length > 1 ? "s" : ""} on this run`;
  $("remarks").lastElementChild.replaceChildren(...remarks.map((each) => said("li", "", each)));
  $("which").hidden = !other;
  $("which").replaceChildren(...state.runs.map((each, i) => Object.assign(made("option", "", each.name), { value: i, selected: i === state.run })));
  const chips = run.filters.map((name) => {
    const chip = button(name, () => filterBy(state.filter === name ? "" : name));
    chip.dataset.name = name;
    return chip;
  });
  $("filters").replaceChildren(...chips);
}

/* Curves */

/* The colour of a line: a role has the same one in all charts; measured seats, and kinds, within a chart. */
const tints = new Map();
function tint(name) {
  if (!tints.size) for (const role of state.runs[0].roles) tints.set(role, tints.size);
  if (!tints.has(name)) tints.set(name, tints.size);
  return tints.get(name) % 6;
}

function drawCharts() {
  const named = new Map();
  state.runs.forEach((each, run) => {
    for (const chart of each.charts) {
      const lines = chart.lines.map((line) => ({ ...line, run, runName: state.runs.length > 1 ? each.name : "" }));
      const key = `${chart.group}\n${chart.name}\n${chart.about || ""}`, known = named.get(key);
      named.set(key, { ...chart, lines: known ? known.lines.concat(lines) : lines });
    }
  });
  const all = [...named.values()], groups = [...new Set(all.map((chart) => chart.group))];
  if (!groups.includes(state.group)) state.group = groups[0];
  $("groups").replaceChildren(...groups.map((group, i) => {
    const tab = button(group, () => { state.group = group; drawCharts(); }, `key ${i + 1}`);
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-selected", String(group === state.group));
    return tab;
  }));
  const steps = all.flatMap((chart) => chart.lines.flatMap((line) => [line.steps[0], line.steps.at(-1)]));
  const span = [Math.min(...steps), Math.max(...steps)];
  charts = all.filter((chart) => chart.group === state.group).map((chart) => {
    const own = [...new Set(chart.lines.map((line) => line.name))];
    const seats = own.filter((name) => name !== "base"); // the base is grey, the seats have other colours than roles
    const measured = (name) => (name === "base" ? 5 : (seats.indexOf(name) + 2) % 5);
    const colour = chart.how === "measured" ? measured : chart.group === "The game" ? (name) => own.indexOf(name) % 6 : tint;
    return new Chart(chart, span, colour, point, (step) => { choose(step); $("explorer").scrollIntoView({ block: "start", behavior: "smooth" }); });
  });
  const none = made("p", "empty", "No step has been played yet. The curves appear with the first one.");
  $("charts").replaceChildren(...(charts.length ? charts.map((chart) => chart.element) : [none]));
  fit();
}

function fit() {
  for (const chart of charts) chart.fit(chart.svg.clientWidth);
  point(null);
}

let pointed = null, waiting = false;
function point(step) {
  pointed = step;
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    for (const chart of charts) chart.mark(state.step, pointed);
  });
}

/* Episodes */

const steps = () => state.runs[state.run].steps.map(([step]) => step);
const lastStep = () => steps().at(-1) ?? null;

/* Show the requested step, else the nearest one that has episodes. */
async function choose(step, { follow = false, open = null } = {}) {
  const known = steps();
  state.follow = follow;
  state.step = step === null || !known.length ? null : known.reduce((best, each) => (Math.abs(each - step) < Math.abs(best - step) ? each : best));
  stepper();
  point(null);
  await list({ open });
}

function move(by) {
  const known = steps(), place = known.indexOf(state.step);
  if (known.length) choose(known[Math.min(known.length - 1, Math.max(0, place + by))]);
}

function stepper() {
  const known = steps(), run = state.runs[state.run];
  $("step").value = state.step === null ? "" : state.step;
  $("step").disabled = !known.length;
  $("of").textContent = `of ${Math.max(run.played, known.at(-1) ?? 0).toLocaleString("en")}`;
  $("before").disabled = !known.length || state.step <= known[0];
  $("after").disabled = !known.length || state.step >= known.at(-1);
}

/* Fill the list: the cases of the step, or those of all steps that match the filter and the words. */
async function list({ open = null, more = false } = {}) {
  const mine = ++asked, wide = state.all && (state.filter || state.words);
  try {
    if (!more) Object.assign(state, { cases: [], want: 60, next: 0 });
    else state.want += 60;
    if (!wide) {
      const about = { filter: "", q: state.words, from: state.step ?? 0, to: state.step ?? 0 };
      const found = state.words ? await source.find(state.run, about) : await source.step(state.run, state.step ?? 0);
      if (mine !== asked) return;
      Object.assign(state, { cases: state.step === null ? [] : found.cases, next: null });
    }
    while (wide && state.next !== null && state.cases.length < state.want) {
      const found = await source.find(state.run, { filter: state.filter, q: state.words, from: state.next });
      if (mine !== asked) return;
      Object.assign(state, { cases: state.cases.concat(found.cases), next: found.next, looked: found.looked });
      entries(true);
    }
    fail(null);
  } catch (error) { fail(error); }
  entries(false);
  const here = shownCases(), wanted = open || (state.open && state.open.id);
  const kept = here.find((each) => each.id === wanted) || (more ? null : here[0]);
  if (kept) await read(kept, { turn: Boolean(open) });
  else if (!more) detail(null);
}

const shownCases = () => state.cases.filter((each) => !state.filter || each.kind === state.filter || each.flags.includes(state.filter));

function entries(looking) {
  const here = shownCases(), wide = state.all && (state.filter || state.words), run = state.runs[state.run];
  for (const chip of $("filters").children) {
    const count = state.cases.filter((each) => each.kind === chip.dataset.name || each.flags.includes(chip.dataset.name)).length;
    chip.setAttribute("aria-pressed", String(chip.dataset.name === state.filter));
    chip.classList.toggle("none", !wide && !count);
    chip.replaceChildren(chip.dataset.name, ...(wide && chip.dataset.name !== state.filter ? [] : [made("b", "", String(count))]));
  }
  const what = `${here.length} case${here.length === 1 ? "" : "s"}`;
  const far = wide ? `${what} in ${state.looked ?? 0} of ${run.steps.length} steps${looking ? ", searching" : ""}` : what;
  const nothing = !run.steps.length ? "No episodes have been written yet."
    : wide ? "No case in the run matches the filter and the search." : "No case in this step matches. Try all steps.";
  $("found").textContent = here.length || looking ? far : nothing;
  $("more").hidden = looking || state.next === null || state.next === undefined;
  $("cases").replaceChildren(...here.map(entry));
}

function entry(each) {
  const kind = made("span", "line kind", made("span", "soft", `step ${each.step}`), made("span", `tone ${each.tone}`, MARKS[each.tone]), each.kind);
  const rewards = each.parts.map((part) => `${part.role} ${part.seat}: ${part.reward === null ? "no reward" : shown(part.reward)}`).join("  \u2192  ");
  const act = button(kind, () => read(each, { turn: true }));
  act.append(said("span", "line", each.problem), said("span", "line soft", rewards), ...each.flags.map((flag) => made("span", "flag", flag)));
  act.setAttribute("aria-current", String(Boolean(state.open) && state.open.id === each.id));
  act.dataset.id = each.id;
  return made("li", "", act);
}

async function read(each, { turn = false } = {}) {
  const run = state.run;
  try {
    const whole = await source.case(run, each.step, each.id);
    if (run !== state.run) return;
    state.open = { ...whole, run };
    detail(state.open);
    fail(null);
  } catch (error) { return fail(error); }
  if (turn) $("panes").classList.add("reading");
  for (const act of $("cases").querySelectorAll("button")) act.setAttribute("aria-current", String(act.dataset.id === each.id));
  if (state.all && (state.filter || state.words)) { state.step = each.step; stepper(); point(null); }
  history.replaceState(null, "", `#${new URLSearchParams({ run, step: each.step, case: each.id })}`);
}

function turn(by) {
  const here = shownCases(), place = here.findIndex((each) => state.open && each.id === state.open.id);
  const next = here[Math.min(here.length - 1, Math.max(0, place + by))];
  if (next) read(next).then(() => $("cases").querySelector('[aria-current="true"]')?.scrollIntoView({ block: "nearest" }));
}

function detail(each) {
  if (!each) state.open = null;
  const kept = state.kept && (!each || state.kept.id !== each.id || state.kept.run !== each.run) ? [card(state.kept, true)] : [];
  const none = "Choose a case in the list to read its prompts and answers.";
  $("detail").replaceChildren(...kept, each ? card(each, false) : made("p", "empty", none));
}

function card(each, kept) {
  const back = button("\u2039 List", () => $("panes").classList.remove("reading"));
  back.classList.add("back");
  const keep = kept ? button("Drop", putAway, "Esc") : button("Compare", () => { state.kept = each; detail(each); }, "Keep this case and compare it with the next (p)");
  const same = button("Same problem", () => elsewhere(each, where), "At other steps (s)");
  same.classList.add("same");
  const where = made("p", "where soft");
  const place = `step ${each.step}${state.runs.length > 1 ? ` of ${state.runs[each.run].name}` : ""}  \u00b7  `;
  const kind = made("span", "kind", made("span", `tone ${each.tone}`, MARKS[each.tone]), each.kind);
  const top = made("div", "top", kept ? null : back, kind, put(made("span", "soft", place), each.subject),
    made("span", "buttons", keep, kept ? null : same));
  return made("article", "case", top, ...each.flags.map((flag) => made("span", "flag", flag)), where,
    said("p", "text problem", each.problem), ...each.parts.map((part, i) => reading(part, each, i)));
}

/* One completion: its role, outcome, prompt and text. */
function reading(part, each, number) {
  const box = made("section", `part tint-${tint(part.role)}`);
  const facts = [["reward", shown(part.reward)], ["advantage", shown(part.advantage)], ["tokens", shown(part.tokens)], ["ended by", part.stop],
    ["answer", part.answer], ["checker", part.reason]].filter(([, value]) => value !== null && value !== "" && value !== undefined);
  const tone = part.right === null ? "open" : part.right ? "good" : "bad";
  const head = made("h3", "", said("span", "", `${part.role}, seat ${part.seat}: `), made("span", `tone ${tone}`, MARKS[tone]), said("span", "", part.verdict));
  box.append(head, made("div", "facts", ...facts.map(([name, value]) => made("span", "", `${name} `, said("b", "", value))), group(part)));
  if (number && part.saw) box.append(said("p", "soft", part.saw));
  if (number && part.seen) box.append(long(part, each, "prompt", part.seen, "box text seen"));
  box.append(long(part, each, "text", part.text || "(nothing)", "box text"));
  if (!number && part.seen) box.append(made("details", "", made("summary", "", `What the ${part.role} was asked`), long(part, each, "prompt", part.seen, "box text seen")));
  const more = Object.entries(part.more);
  if (more.length) box.append(made("p", "facts", ...more.map(([name, value]) => made("span", "", said("span", "", `${name} `), said("b", "", value)))));
  return box;
}

/* The rewards of a completion's group as bars, its own coloured. */
function group(part) {
  const rewards = part.group.map((reward) => reward ?? 0), high = Math.max(...rewards, 0), low = Math.min(...rewards, 0);
  if (rewards.length < 2) return null;
  const bars = made("span", "rewards", ...rewards.map((reward, i) => {
    const bar = made("i", i === part.place ? "own" : "");
    bar.style.height = `${12 + (88 * (reward - low)) / (high - low || 1)}%`;
    return bar;
  }));
  bars.title = `rewards of its group: ${part.group.map((reward) => shown(reward)).join(", ")}`;
  return made("span", "", "group ", bars);
}

/* A text in a box, with a button for the rest of a very long one. */
function long(part, each, kind, text, look) {
  const box = said("pre", look, text), length = kind === "text" ? part.characters : part.prompt_characters;
  box.tabIndex = 0;
  if (!text.endsWith("\u2026") || length <= text.length) return box;
  const count = length.toLocaleString("en");
  if (!source.text) return made("div", "", box, made("p", "soft", `This file has only the beginning of ${count} characters.`));
  const rest = button(`Show all ${count} characters`, async () => {
    try { box.replaceChildren(); put(box, (await source.text(each.run, part.line, kind)).text); rest.remove(); } catch (error) { fail(error); }
  });
  return made("div", "", box, rest);
}

/* The steps at which the same problem was played; a click puts that case beside this one. */
async function elsewhere(each, where) {
  if (each.problem_id === null) return where.replaceChildren("This case names no problem.");
  try {
    const found = await Promise.all(state.runs.map((_, run) => source.problem(run, each.problem_id)));
    const places = found.flatMap(({ steps }, run) => steps.filter((step) => step !== each.step || run !== each.run).map((step) => [run, step]));
    const links = places.slice(0, 30).map(([run, step]) => button(`${step}${run !== each.run ? ` of ${state.runs[run].name}` : ""}`, async () => {
      const { cases } = await source.step(run, step), other = cases.filter((one) => one.problem_id === each.problem_id);
      state.kept = each;
      Object.assign(state, { run, filter: "", words: "", all: false });
      $("words").value = "";
      $("all").checked = false;
      $("which").selectedIndex = run;
      await choose(step, { open: (other.find((one) => one.parts.length === each.parts.length) || other[0]).id });
    }));
    where.replaceChildren(...(links.length ? ["Also at step ", ...links] : ["This problem was played only at this step. Compare keeps the case beside any other."]));
  } catch (error) { fail(error); }
}

function putAway() {
  state.kept = null;
  detail(state.open);
}

function filterBy(name) {
  state.filter = name;
  $("panes").classList.remove("reading");
  list();
}

/* Controls */

function theme(next) {
  const root = document.documentElement, order = ["system", "light", "dark"];
  let now = root.dataset.theme || "system";
  try { now = localStorage.getItem("theme") || now; } catch { /* a file may have no storage */ }
  if (next) now = order[(order.indexOf(now) + 1) % 3];
  try { localStorage.setItem("theme", now); } catch { /* the choice then lasts only for this page */ }
  if (now === "system") delete root.dataset.theme; else root.dataset.theme = now;
  $("theme").textContent = { system: "Auto", light: "Light", dark: "Dark" }[now];
}

function pressed(event) {
  const typing = event.target.matches("input:not([type=checkbox]), select, textarea");
  if (event.key === "Escape") {
    if (typing) event.target.blur();
    else if ($("panes").classList.contains("reading") && getComputedStyle($("list")).display === "none") $("panes").classList.remove("reading");
    else putAway();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || $("keys").open) return;
  const by = event.shiftKey ? 10 : 1, tabs = $("groups").children;
  const acts = {
    ArrowLeft: () => move(-by), ArrowRight: () => move(by), Home: () => choose(steps()[0] ?? null), End: () => choose(lastStep(), { follow: true }),
    j: () => turn(1), k: () => turn(-1), "/": () => $("words").focus(), a: () => $("all").click(), t: () => theme(true),
    p: () => state.open && ((state.kept = state.open), detail(state.open)), s: () => $("detail").querySelector(".same")?.click(),
    "?": () => $("keys").showModal(), 1: () => tabs[0]?.click(), 2: () => tabs[1]?.click(), 3: () => tabs[2]?.click(),
  };
  if (!Object.hasOwn(acts, event.key)) return;
  event.preventDefault();
  acts[event.key]();
}

function wire() {
  $("keys").querySelector("dl").replaceChildren(...KEYS.flatMap(([keys, what]) => [
    made("dt", "", ...keys.split(" ").flatMap((key, i) => (i ? [" ", made("kbd", "", key)] : [made("kbd", "", key)]))), made("dd", "", what)]));
  $("ask").addEventListener("click", () => $("keys").showModal());
  $("theme").addEventListener("click", () => theme(true));
  $("before").addEventListener("click", () => move(-1));
  $("after").addEventListener("click", () => move(1));
  $("step").addEventListener("change", () => choose(Number($("step").value)));
  $("which").addEventListener("change", () => { state.run = Number($("which").value); state.open = null; choose(state.step ?? lastStep()); });
  $("all").addEventListener("change", () => { state.all = $("all").checked; list(); });
  $("more").addEventListener("click", () => list({ more: true }));
  let pause = 0;
  $("words").addEventListener("input", () => { clearTimeout(pause); pause = setTimeout(() => { state.words = $("words").value; list(); }, 250); });
  document.addEventListener("keydown", pressed);
  new ResizeObserver(() => requestAnimationFrame(fit)).observe($("charts"));
}

async function begin() {
  theme(false);
  wire();
  const at = new URLSearchParams(location.hash.slice(1));
  try {
    await load();
    state.run = Math.min(state.runs.length - 1, Number(at.get("run")) || 0);
    $("which").selectedIndex = state.run;
    const step = Number(at.get("step"));
    await choose(step || lastStep(), { follow: !step, open: at.get("case") });
    if (!at.get("case")) $("panes").classList.remove("reading");
  } catch (error) { fail(error); }
  document.documentElement.dataset.ready = "yes";
  if (!bundled) timer = setTimeout(watch, EVERY_MS);
}

begin();
