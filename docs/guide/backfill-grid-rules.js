// Rules of the backfill grid: which days follow from a plan, what a run makes of them, and the score. No drawing.
//
// Days are whole numbers from 1 to the last day of the calendar. A world has, by table and day, what the
// day holds; null if it was never built. What a day should hold follows from the landing and the code.

/** The days of its input that decide a day of a table: its own, `before` it and `after` it. */
export const TABLES = {
  raw_orders: {},
  stg_orders: { of: "raw_orders", before: 0, after: 7 },
  fact_daily_orders: { of: "stg_orders", before: 0, after: 0 },
};
const NAMES = Object.keys(TABLES);
const [RAW, STAGED, FACTS] = NAMES;
export const LAST = 16;

const range = (first, last) => Array.from({ length: Math.max(last - first + 1, 0) }, (_, at) => first + at);
const sorted = (days) => [...new Set(days)].sort((a, b) => a - b);

/** The days that changes of some input days may change, on a calendar that ends with a day. */
export function touched(days, { before, after }, last = LAST) {
  return sorted(days.flatMap((day) => range(day - after, day + before))).filter((day) => day >= 1 && day <= last);
}

/** The days of each table that a plan is about: those asked for of the first, and what follows. */
export function follows(first, days, last = LAST) {
  const found = {};
  for (const name of NAMES.slice(NAMES.indexOf(first))) {
    found[name] = name === first ? sorted(days) : touched(found[TABLES[name].of], TABLES[name], last);
  }
  return found;
}

/** Days in a row, cut into chunks of at most so many; all in one if no number is given. */
export function chunks(days, most) {
  const size = most || days.length || 1;
  return range(0, Math.ceil(days.length / size) - 1).map((at) => days.slice(at * size, (at + 1) * size));
}

/** The runs of a plan: those of the log first, then those of what is made of it. */
export function runs(first, days, most) {
  const found = follows(first, days);
  const waves = first === RAW ? [[RAW], [STAGED, FACTS]] : [NAMES.slice(NAMES.indexOf(first))];
  return waves.flatMap((names) => chunks(found[names[0]], most).map((of) => ({ names, days: of })));
}

/** What a day would hold if it were built now; null if the input day without which it cannot be made is not there. */
function made(world, name, day) {
  if (name === RAW) return String(world.landing[day]);
  if (name === FACTS) return world.tables[STAGED][day] && `${world.tables[STAGED][day]} by code ${world.code}`;
  return world.tables[RAW][day] && told(day, world.lines, world.tables[RAW]);
}

/** The staging of a day: which versions of the log days tell of it. */
function told(day, lines, raw) {
  const { before, after } = TABLES[STAGED];
  return range(day - before, day + after)
    .filter((logged) => raw[logged] && lines.some((line) => line.event === day && line.logged === logged))
    .map((logged) => `${logged}:${raw[logged]}`).join(" ");
}

/** What a day should hold: as built from the landing of now by the code of now. */
function right(world, name, day) {
  if (name === RAW) return made(world, RAW, day);
  const staging = told(day, world.lines, world.landing);
  return name === STAGED ? staging : `${staging} by code ${world.code}`;
}

/** One of `filled`, `empty` (never built), `late` (its input is newer), `wrong`. */
export function state(world, name, day) {
  const has = world.tables[name][day];
  if (has === null) return "empty";
  if (has === right(world, name, day)) return "filled";
  return behind(world, name, day) ? "late" : "wrong";
}

/** Whether staging was built from older input than there is, or a fact from such. */
function behind(world, name, day) {
  if (name === RAW) return false;
  return made(world, STAGED, day) !== world.tables[STAGED][day] ||
    (name === FACTS && !world.tables[FACTS][day].startsWith(`${world.tables[STAGED][day]} by`));
}

/**
 * A run: the world after it, and what became of its days: `computed`, `identical` or `input missing`.
 *
 * @param always compute a day that is as it would be made: as a script does that keeps no record.
 */
export function run(world, { names, days }, always = false) {
  const next = { ...world, tables: { ...world.tables } };
  const became = { computed: [], identical: [], "input missing": [] };
  for (const name of names) {
    next.tables[name] = { ...next.tables[name] };
    for (const day of days) {
      const now = made(next, name, day);
      const same = now === next.tables[name][day] && !always;
      became[now === null ? "input missing" : same ? "identical" : "computed"].push({
        name, day, before: state(world, name, day),
      });
      if (now !== null) next.tables[name][day] = now;
    }
  }
  return { world: next, became };
}

/**
 * A backfill: its runs one after another, from one of them on. A run that fails publishes nothing, and
 * those after it are not launched.
 *
 * @param failing the number of the run that fails, from 0; null if none does.
 * @returns the world, what became of the days, and the number of the run with which to go on, or null.
 */
export function backfill(world, plan, { from = 0, failing = null, always = false } = {}) {
  const became = { computed: [], identical: [], "input missing": [] };
  for (let number = from; number < plan.length; number += 1) {
    if (number === failing) return { world, became, next: number };
    const done = run(world, plan[number], always);
    world = done.world;
    Object.keys(became).forEach((what) => became[what].push(...done.became[what]));
  }
  return { world, became, next: null };
}

/** How many of some days were built although they were as they should be. */
export const needless = (became) => became.computed.filter(({ before }) => before === "filled").length;

/** The days that are not as they should be. */
export function left(world) {
  return NAMES.flatMap((name) => range(1, LAST).map((day) => ({ name, day, state: state(world, name, day) })))
    .filter((of) => of.state !== "filled");
}

// --- what has happened ------------------------------------------------------------------------------

/** The situations that can be chosen, with what a person knows of them. */
export const SITUATIONS = {
  amounts: "The landing of day 9 had bad amounts. It has been mended, and nothing has been loaded since.",
  outage: "Nothing was loaded on days 6 to 8. The files have landed.",
  late: "A line of day 7 came on day 12, and was loaded. The day was not built again.",
  code: "The facts of days 3 to 10 were made by code with a bug. The code is mended.",
  several: "Several things happened at once.",
};

/** Numbers from 0 to 1 that a seed decides. */
function numbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

/** Each log day tells of its own day and of the one before it, some of earlier ones. */
function lines() {
  const found = [];
  for (const logged of range(1, LAST)) {
    const delays = [0, 1, ...(logged % 3 === 0 ? [3] : []), ...(logged % 4 === 0 ? [5] : [])];
    found.push(...delays.map((delay) => ({ event: logged - delay, logged })));
  }
  return found.filter((line) => line.event >= 1);
}

/** A world in which all days are as they should be. */
export function filled() {
  const days = range(1, LAST);
  const none = Object.fromEntries(days.map((day) => [day, null]));
  const world = {
    lines: lines(), code: 1, landing: Object.fromEntries(days.map((day) => [day, 1])),
    tables: Object.fromEntries(NAMES.map((name) => [name, none])),
  };
  return backfill(world, runs(RAW, days)).world;
}

/** The world after what a situation says; of `several`, the seed decides what happened. */
export function situation(name, seed = 1) {
  const world = structuredClone(filled());
  if (name === "several") {
    const next = numbers(seed);
    const day = () => 2 + Math.floor(next() * (LAST - 4));
    mended(world, day());
    if (next() < 0.6) late(world, day());
    const first = day();
    if (next() < 0.6) buggy(world, range(first, Math.min(first + 2, LAST)));
    const lost = day();
    outage(world, range(lost, lost + 1));
    return world;
  }
  if (name === "amounts") mended(world, 9);
  if (name === "outage") outage(world, [6, 7, 8]);
  if (name === "late") late(world, 12);
  if (name === "code") buggy(world, range(3, 10));
  return world;
}

/** The landing of a day is another than what was loaded. */
function mended(world, day) {
  world.landing[day] += 1;
}

/** Days were never loaded, nor built. What else reads them was built without them. */
function outage(world, days) {
  for (const name of NAMES) days.forEach((day) => (world.tables[name][day] = null));
  for (const day of touched(days, TABLES[STAGED]).filter((of) => !days.includes(of))) {
    for (const name of [STAGED, FACTS]) world.tables[name][day] = made(world, name, day);
  }
}

/** A line of five days before was loaded, and its day was not built again. */
function late(world, logged) {
  const event = Math.max(logged - 5, 1);
  const others = world.lines.filter((line) => !(line.event === event && line.logged === logged));
  const without = { ...world, lines: others, tables: structuredClone(world.tables) };
  if (world.tables[RAW][event]) {
    for (const name of [STAGED, FACTS]) {
      without.tables[name][event] = made(without, name, event);
      world.tables[name][event] = without.tables[name][event];
    }
  }
  if (others.length === world.lines.length) world.lines.push({ event, logged });
}

/** The facts of some days were made by code that has been mended since. */
function buggy(world, days) {
  for (const day of days) {
    if (world.tables[FACTS][day]) world.tables[FACTS][day] = `${world.tables[STAGED][day]} by code 0`;
  }
}

/** What a launch taught, in a sentence. */
export function lesson({ next, became }, world) {
  if (next !== null) return "The run that failed published nothing. What other runs published stays: go on with it.";
  if (needless(became)) return "Days that were right were built again. With a record of what each day was made of, they are left alone.";
  if (became["input missing"].length) return "A day cannot be built without its own day of the input. Begin with that table.";
  const wrong = left(world);
  if (!wrong.length) return "All days are as they should be.";
  const upstream = wrong.some((of) => of.name !== FACTS && of.state !== "late");
  return upstream && !became.computed.some((of) => of.name === RAW)
    ? "Some days still have a wrong input: begin with the table where it went wrong."
    : "Some days are still not right: look at which days of the input they are made of.";
}
