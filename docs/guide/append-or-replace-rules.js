// Rules of "append or replace": what a job does to a table of days, and what its reader sees. No drawing.
//
// A row is { day, key, version, amount }. A table is a list of rows. A job writes commits: each is the
// whole table after it. Readers see the last one.

/** The ways to write, as the page names them. */
export const WAYS = {
  append: "append",
  "delete-insert": "delete, then insert",
  merge: "merge by key",
  "merge-versions": "merge by key, if the version is newer",
  replace: "replace days in one commit",
};

/** Where a job may crash. */
export const CRASHES = {
  none: "nowhere",
  before: "before the write",
  middle: "in the middle (between delete and insert)",
  after: "after the commit, before it says so",
};

const same = (row) => `${row.day} ${row.key} ${row.version} ${row.amount}`;

function equal(some, others) {
  const counted = (rows) => rows.map(same).sort().join("\n");
  return some.length === others.length && counted(some) === counted(others);
}

/** MERGE: all rows with the key of a source row are updated, other source rows inserted. A null key equals none. */
function merged(table, rows, newerOnly) {
  const bySource = new Map(rows.filter((row) => row.key !== null).map((row) => [row.key, row]));
  const there = new Set(table.map((row) => row.key));
  const updated = table.map((row) => {
    const its = row.key === null ? undefined : bySource.get(row.key);
    return its && (!newerOnly || its.version > row.version) ? its : row;
  });
  return [...updated, ...rows.filter((row) => row.key === null || !there.has(row.key))];
}

/**
 * The commits of a job that loads `rows` of `days`: the table after each.
 *
 * A replace whose days are as they were makes none: as of this project, which leaves them alone.
 */
export function commits(way, table, rows, days) {
  const its = new Set(days);
  const rest = table.filter((row) => !its.has(row.day));
  if (way === "append") return [[...table, ...rows]];
  if (way === "delete-insert") return [rest, [...rest, ...rows]];
  if (way === "merge") return [merged(table, rows, false)];
  if (way === "merge-versions") return [merged(table, rows, true)];
  if (way !== "replace") throw new Error(`no way of writing is named ${way}`);
  const old = table.filter((row) => its.has(row.day));
  return equal(old, rows) ? [] : [[...rest, ...rows]];
}

/** A job: the table after it, how many commits it made, and whether it ended with success. */
export function job(way, table, rows, days, crash = "none") {
  const all = commits(way, table, rows, days);
  // In the middle of one commit, files are there that no commit names: readers see what they saw.
  const made = { none: all.length, before: 0, middle: Math.max(all.length - 1, 0), after: all.length }[crash];
  if (made === undefined) throw new Error(`no crash is named ${crash}`);
  return { table: made ? all[made - 1] : table, commits: made, success: crash === "none" };
}

/**
 * A backfill: a job for each of `chunks` (lists of days), from one of them on; it ends with the first
 * job that fails.
 *
 * @returns the table, the commits, the jobs that ended with success, and the number of the job with
 *   which to go on: null if all ended with success.
 */
export function backfill(way, table, source, chunks, { crash = "none", at = 0, from = 0 } = {}) {
  let [made, ended] = [0, 0];
  for (let number = from; number < chunks.length; number += 1) {
    const its = new Set(chunks[number]);
    const rows = source.filter((row) => its.has(row.day));
    const done = job(way, table, rows, chunks[number], number === at ? crash : "none");
    table = done.table;
    made += done.commits;
    if (!done.success) return { table, commits: made, ended, next: number };
    ended += 1;
  }
  return { table, commits: made, ended, next: null };
}

/** What a reader sees: rows, and the sum of their amounts. */
export function seen(table) {
  return { rows: table.length, total: table.reduce((sum, row) => sum + row.amount, 0) };
}

/** By day, what a reader sees, what is right, and what is to be said of the difference. */
export function compared(table, right, days) {
  return days.map((day) => {
    const [have, should] = [table, right].map((rows) => rows.filter((row) => row.day === day));
    return { day, reader: seen(have), right: seen(should), verdict: verdict(have, should) };
  });
}

/** One of `right`, `empty`, `rows too many`, `rows missing`, `other amounts`. */
function verdict(have, should) {
  if (equal(have, should)) return "right";
  if (!have.length) return "empty";
  if (have.length > should.length) return "rows too many";
  return have.length < should.length ? "rows missing" : "other amounts";
}

/** The page's table has these days and shops. */
export const DAYS = [1, 2, 3, 4, 5, 6];
const SHOPS = ["a", "b", "c"];

/**
 * What the source delivers, and what is right.
 *
 * @param corrected the price of shop c is 12 instead of 10, as version 3 of its rows.
 * @param withdrawn the row of shop b on day 3 is there no more.
 * @param keyless day 4 has a row without a key.
 * @param old of shop a on day 2, version 1 is delivered after version 2.
 */
export function source({ corrected = false, withdrawn = false, keyless = false, old = false } = {}) {
  const right = DAYS.flatMap((day) =>
    SHOPS.map((shop) => ({
      day, key: `${shop}${day}`,
      ...(corrected && shop === "c" ? { version: 3, amount: 12 } : { version: 2, amount: 10 }),
    })),
  ).filter((row) => !(withdrawn && row.key === "b3"));
  if (keyless) right.push({ day: 4, key: null, version: 2, amount: 10 });
  const delivered = right.map((row) => (old && row.key === "a2" ? { ...row, version: 1, amount: 99 } : row));
  return { delivered, right };
}

/** What a run taught, in a sentence or two: from what a reader sees of it. */
export function lesson(way, crash, before, after, right) {
  if (crash === "before") return "No commit was made. Readers see what they saw, whatever the way of writing.";
  if (crash === "middle") {
    return way === "delete-insert"
      ? "The DELETE is a commit of its own. Its days are empty for readers until somebody runs the job again."
      : "Its files are there, and no commit names them. Readers see what they saw.";
  }
  const failed = crash === "after" ? "The commit is there, although the job failed. " : "";
  const has = new Set(compared(after, right, DAYS).map((day) => day.verdict));
  if (has.has("rows too many")) return failed + tooMany(way, after, right);
  if (has.has("other amounts")) return failed + otherAmounts(way);
  if (has.has("empty")) return `${failed}The days of other jobs are still empty.`;
  if (way === "append" && failed) return `${failed}A second run appends its rows again.`;
  if (equal(before, after)) return `${failed}Nothing changed for readers: this run can be repeated.`;
  return `${failed}Readers see what is right.${way === "append" ? " Run it once more." : ""}`;
}

function tooMany(way, after, right) {
  const keys = (rows) => rows.map((row) => row.key);
  const nulls = (rows) => keys(rows).filter((key) => key === null).length;
  if (way === "append") return "An append counts each run.";
  if (nulls(after) > nulls(right)) return "A null key matches nothing: each MERGE inserts its row again.";
  const known = keys(after).filter((key) => key !== null);
  if (new Set(known).size < known.length) return "What an append left twice stays twice: a MERGE updates both rows.";
  return "The source no longer has a row. This MERGE takes no row away.";
}

function otherAmounts(way) {
  if (way === "merge-versions") return "This MERGE keeps the version that the table has, unless that of the source is greater.";
  return "An older version was delivered last, and it counts. Compare versions before the write.";
}
