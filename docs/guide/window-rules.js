// Rules of "event day and arrival day": which lines a day takes, until when, and what tables say. No drawing.
//
// A line is { id, event, logged, amount, version }: days are whole numbers, and versions of an order are
// compared as lists of numbers. `today` is the day on which one looks: log days before it are loaded, but
// for one that may be `missing`, as its folder has not landed; 0 if none is.

/** The log days that decide an event day, first and last. */
export const logDays = (event, window) => [event, event + window];

/** The event days that a line of a log day may change, first and last. */
export const mayTouch = (logged, window) => [logged - window, logged];

/** Whether a line was logged within the window of its event day. */
export const inTime = (line, window) => line.logged <= line.event + window;

/** A day is `final` when all log days of its window are loaded, and `to come` until it is over. */
export function state(event, window, today, missing = 0) {
  if (event >= today) return "to come";
  const [first, last] = logDays(event, window);
  return last < today && !(missing >= first && missing <= last) ? "final" : "open";
}

/** The lines that are loaded by a day. */
export const loaded = (lines, today, missing = 0) =>
  lines.filter((line) => line.logged < today && line.logged !== missing);

function less(some, others) {
  const place = some.findIndex((value, at) => value !== others[at]);
  return place >= 0 && some[place] < others[place];
}

/** By line, the greater versions of its order. Of equal ones, the last is the greatest. */
function greater(lines) {
  const found = new Map();
  lines.forEach((line, at) => {
    const others = lines.filter((other, place) =>
      other.id === line.id &&
      (less(line.version, other.version) || (!less(other.version, line.version) && place > at)));
    found.set(line, others);
  });
  return found;
}

/** What staging holds: lines in time, without a greater version that came while their day was open. */
export function staged(lines, window) {
  const above = greater(lines);
  return lines.filter((line) =>
    inTime(line, window) && !above.get(line).some((other) => other.logged <= line.event + window));
}

/**
 * What counts with all that is known.
 *
 * @param corrects whether late lines count. If not, one only takes its order off a day that was open
 *   when it came, as staging does.
 */
export function counted(lines, window, corrects) {
  const above = greater(lines);
  return lines.filter((line) => {
    if (corrects) return !above.get(line).length;
    const counts = (other) => inTime(other, window) || other.logged <= line.event + window;
    return inTime(line, window) && !above.get(line).some(counts);
  });
}

/** Orders and revenue by a day of the lines: `event` or `logged`. */
export function sums(lines, day) {
  const found = {};
  for (const line of lines) {
    const of = (found[line[day]] ??= { orders: 0, revenue: 0 });
    of.orders += 1;
    of.revenue += line.amount;
  }
  return found;
}

/** What the tables hold. */
export function tables(lines, { window, today, corrects, missing = 0 }) {
  const known = loaded(lines, today, missing);
  const [facts, current] = [staged(known, window), counted(known, window, corrects)].map((of) => sums(of, "event"));
  const late = known.filter((line) => !inTime(line, window));
  const corrections = {};
  for (const day of new Set([...Object.keys(facts), ...Object.keys(current)])) {
    const [now, then] = [current[day], facts[day]].map((of) => of ?? { orders: 0, revenue: 0 });
    const more = { orders: now.orders - then.orders, revenue: now.revenue - then.revenue };
    if (more.orders || more.revenue) corrections[day] = more;
  }
  return { facts, current, corrections, late: corrects ? late : [], check: check(late, corrects) };
}

/** What the check `late_lines` says; nothing if no line is late. */
function check(late, corrects) {
  if (!late.length) return "";
  const worth = late.reduce((sum, line) => sum + Math.abs(line.amount), 0).toFixed(2);
  const what = `${late.length} line(s) worth ${worth} came after the window of their day had closed; `;
  return corrects
    ? `WARN: ${what}they are in late_orders and in what is made of all that is known`
    : `ERROR: ${what}THEY WERE DROPPED and are in no total`;
}

/** What became of a line: `not loaded yet`, `staged`, `superseded`, `late: a correction`, `late: dropped`. */
export function fate(line, lines, { window, today, corrects, missing = 0 }) {
  const known = loaded(lines, today, missing);
  if (!known.includes(line)) return "not loaded yet";
  if (!inTime(line, window)) return corrects ? "late: a correction" : "late: dropped";
  return staged(known, window).includes(line) ? "staged" : "superseded";
}

/** A transform that takes the orders of the last two days before a day, from log days up to `run`. */
export const ofLastTwoDays = (lines, run, day) =>
  lines.filter((line) => line.logged <= run && line.event >= day - 1);
