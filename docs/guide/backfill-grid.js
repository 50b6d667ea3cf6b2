// The simulator of a backfill: a grid of days and tables on which one is planned and launched.
import { element, spoken } from "./guide.js";
import { button, choice, log, number, table, toggle } from "./parts.js";
import { LAST, SITUATIONS, TABLES, backfill, follows, left, lesson, needless, runs, situation, state } from "./backfill-grid-rules.js";

const NAMES = Object.keys(TABLES);
const DAYS = Array.from({ length: LAST }, (_, at) => at + 1);
const TITLES = {
  amounts: "a day of bad amounts", outage: "three days that were not loaded", late: "a late line",
  code: "code with a bug", several: "several things at once",
};
const SIZES = { 0: "all", 7: "7", 3: "3", 1: "1" };
const SIGNS = { filled: "✓", empty: "–", late: "!", wrong: "✗" };
const KEYS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
const START = { name: NAMES[0], first: 1, last: 1, size: 0, failing: 0, always: false };

function spelled(days) {
  if (!days.length) return "no day";
  const [first, last] = [days[0], days.at(-1)];
  return first === last ? `day ${first}` : `days ${first} to ${last}`;
}

function page(root) {
  let [world, seed, plan, next, needed, launched] = [null, 1, null, null, 0, 0];
  let asked = { ...START };
  let [at, anchor] = [[0, 1], null];
  const said = spoken();
  const told = element("p");
  const done = log("What was done");
  const cells = Object.fromEntries(NAMES.map((name) => [name, DAYS.map((day) => cell(name, day))]));
  const grid = table(
    "The days of each table", ["table", ...DAYS.map(String)], NAMES.map((name) => [name, ...cells[name]]),
  );
  const situations = choice("What happened", TITLES, () => reset());
  const first = number("First day", [1, LAST, 1], (value) => ask({ first: value }));
  const last = number("Last day", [1, LAST, 1], (value) => ask({ last: value }));
  const begin = choice("Begin with", Object.fromEntries(NAMES.map((name) => [name, name])), (name) => ask({ name }));
  const size = choice("Days in a run", SIZES, (value) => ask({ size: Number(value) }));
  const failing = number("Run that fails (0: none)", [0, 99, 0], (value) => (asked.failing = value));
  const always = toggle("Build identical days too", (on) => ask({ always: on }));
  const launches = button("Launch", () => launch(0));
  const goOn = button("Go on with the failed run", () => {
    // Whoever goes on has mended what made it fail.
    asked.failing = failing.input.value = 0;
    launch(next);
    // A button that is switched off would lose the keyboard.
    if (goOn.disabled) launches.focus();
  });

  function cell(name, day) {
    return element("button", {
      type: "button", tabindex: "-1",
      onclick: () => mark(name, day),
      onkeydown: (event) => {
        const move = KEYS[event.key];
        if (!move) return;
        event.preventDefault();
        const [row, column] = [NAMES.indexOf(name) + move[0], day + move[1]];
        if (row < 0 || row >= NAMES.length || column < 1 || column > LAST) return;
        at = [row, column];
        draw();
        cells[NAMES[row]][column - 1].focus();
      },
    });
  }

  /** The first press on a cell is where the range begins, the second is where it ends. */
  function mark(name, day) {
    at = [NAMES.indexOf(name), day];
    const from = anchor && anchor[0] === name ? anchor[1] : null;
    anchor = from === null ? [name, day] : null;
    begin.select.value = name;
    first.input.value = Math.min(from ?? day, day);
    last.input.value = Math.max(from ?? day, day);
    ask({ name, first: Math.min(from ?? day, day), last: Math.max(from ?? day, day) });
  }

  function ask(what) {
    Object.assign(asked, what);
    [plan, next] = [null, null];
    draw();
    const possible = days().length;
    said.textContent = possible
      ? `Asked for: ${asked.name}, ${spelled(days())}. ${planned()}`
      : `No days: the first day must not be after the last one, and both are from 1 to ${LAST}.`;
  }

  const days = () => DAYS.filter((day) => day >= asked.first && day <= asked.last);

  function planned() {
    plan = runs(asked.name, days(), asked.size);
    const { became } = backfill(world, plan, { always: asked.always });
    const found = Object.entries(follows(asked.name, days())).slice(1);
    const then = found.map(([name, of]) => `${name}, ${spelled(of)}`).join("; ");
    return `${then ? `What follows: ${then}. ` : ""}${counts(became)} in ${plan.length} run(s).`;
  }

  function counts(became) {
    const missing = became["input missing"].length;
    return (
      `${became.computed.length} day(s) computed, ${became.identical.length} identical` +
      `${missing ? `, ${missing} without their input` : ""}`
    );
  }

  function launch(from) {
    if (!days().length) return;
    plan ??= runs(asked.name, days(), asked.size);
    const fails = asked.failing ? asked.failing - 1 : null;
    const made = backfill(world, plan, { from, failing: fails, always: asked.always });
    [world, next, launched] = [made.world, made.next, launched + 1];
    needed += needless(made.became);
    draw();
    const ended = next === null ? "Success" : `Run ${next + 1} failed`;
    const score = `Built needlessly: ${needed}. Left wrong, late or empty: ${left(world).length}.`;
    said.textContent = `${ended}: ${counts(made.became)}. ${score}`;
    done.tell(`Launch ${launched}: ${said.textContent}`, lesson(made, world));
  }

  function draw() {
    const found = days().length ? follows(asked.name, days()) : {};
    for (const name of NAMES) {
      for (const day of DAYS) {
        const of = state(world, name, day);
        const direct = name === asked.name && found[name]?.includes(day);
        const follow = !direct && found[name]?.includes(day);
        const shown = cells[name][day - 1];
        shown.textContent = direct ? `[${SIGNS[of]}]` : follow ? `(${SIGNS[of]})` : SIGNS[of];
        shown.className = `${direct || follow ? "asked" : ""} ${{ filled: "good", wrong: "bad", late: "warn" }[of] ?? ""}`;
        shown.setAttribute("aria-label", `${name} day ${day}: ${of}${direct ? ", asked for" : follow ? ", follows" : ""}`);
        shown.tabIndex = NAMES[at[0]] === name && at[1] === day ? 0 : -1;
      }
    }
    goOn.disabled = next === null;
  }

  function reset(another = false) {
    if (another) seed += 1;
    const name = situations.select.value;
    world = situation(name, seed);
    asked = { ...START };
    [plan, next, needed, launched, anchor] = [null, null, 0, 0, null];
    [first, last].forEach(({ input }) => (input.value = 1));
    [begin, size].forEach(({ select }) => (select.selectedIndex = 0));
    failing.input.value = 0;
    always.setAttribute("aria-pressed", "false");
    told.textContent = SITUATIONS[name];
    done.clear();
    draw();
    said.textContent = `${left(world).length} days are wrong, late or empty.`;
  }

  function several() {
    situations.select.value = "several";
    reset(true);
  }

  root.append(
    situations.box, told, grid,
    element("p", {}, "✓ filled, – empty, ! late (its input is newer), ✗ wrong; [asked for], (follows). Arrow keys move " +
      "in the grid. SPACE or a tap on a day begins a range, on another day it ends the range."),
    begin.box, first.box, last.box, size.box, failing.box,
    element("p", {}, always, launches, goOn, button("Reset", () => reset()),
      button("Another situation", several)),
    said, done.box,
  );
  reset();
}

page(document.getElementById("sim-grid"));
