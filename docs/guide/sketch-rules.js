// What is wrong with a sketched pipeline. No drawing: all functions are pure.
//
// The names of findings are those of sketch.json, which has their words and what shows each.

import { KINDS } from "./sketch-pieces.js";

/** These start or hold back others; no rows flow through them. */
const CONTROL = ["orchestrator", "checks"];
const ROWS = Object.keys(KINDS).filter((kind) => !CONTROL.includes(kind));
/** From the source to the reader: which of several pieces is the nearest before another. */
const ORDER = ["landing", "script", "raw", "staging", "target", "current", "corrections", "reader"];

/** What follows from a sketch: who feeds whom, and who starts whom. */
class Flow {
  constructor(sketch) {
    this.pieces = sketch.pieces;
    this.edges = sketch.edges;
  }

  has(kind) {
    return kind in this.pieces;
  }

  edge(from, to) {
    return this.edges.some((edge) => edge[0] === from && edge[1] === to);
  }

  /** The pieces whose rows a piece is made of. Rows may be drawn as flowing through the checks. */
  feeds(kind) {
    const direct = ROWS.filter((from) => this.edge(from, kind));
    if (direct.length || !this.edge("checks", kind)) return direct;
    const before = ORDER.slice(0, Math.max(0, ORDER.indexOf(kind)));
    return before.filter((from) => this.edge(from, "checks")).slice(-1);
  }

  /** All pieces that a piece is made of, directly or by way of others. */
  upstream(kind, found = new Set()) {
    for (const from of this.feeds(kind)) {
      if (!found.has(from)) this.upstream(from, found.add(from));
    }
    return found;
  }

  /** The feeds of a piece that are not made of it themselves. */
  loads(kind) {
    return this.feeds(kind).filter((from) => !this.upstream(from).has(kind));
  }

  /** Whether a piece is started, or follows when one that feeds it is. */
  started(kind) {
    return [kind, ...this.upstream(kind)].some((from) => this.edge("orchestrator", from));
  }

  /** Whether rows that came after their day had closed are in a piece. */
  knowsLate(kind) {
    const among = ["late", "current", "corrections"];
    const seen = [...this.upstream(kind)].filter((from) => among.includes(from));
    return [...seen, kind].some((of) =>
      this.feeds(of).some((from) => ["landing", "raw", "late"].includes(from)),
    );
  }
}

const when = (wrong, finding, ...about) => (wrong ? [{ finding, about }] : []);

/** By rule, its findings: {finding, about}, where `about` are the kinds of the pieces concerned. */
const RULES = [
  (flow) => when(!flow.has("landing"), "no-landing"),
  (flow) => {
    const past = !flow.feeds("staging").includes("raw") && flow.feeds("staging")[0] === "landing";
    const none = !flow.has("raw") && flow.has("landing") && !past;
    return when(past || none, "no-raw", ...(past ? ["staging"] : []));
  },
  (flow) => when(flow.pieces.raw?.keeps === "newest", "raw-overwritten", "raw"),
  (flow) => {
    const feeds = flow.feeds("target");
    return when(feeds.length > 0 && !feeds.includes("staging"), "no-staging", "target");
  },
  (flow) => when(flow.pieces.target.by === "arrival", "target-by-arrival", "target"),
  (flow) => when(flow.pieces.target.writes === "appends", "target-appends", "target"),
  twoLoads,
  checked,
  lateRows,
  (flow) => when(flow.edge("staging", "reader"), "reader-on-staging", "staging", "reader"),
  (flow) => {
    const early = ["landing", "raw"].filter((from) => flow.edge(from, "reader"));
    return when(early.length > 0, "reader-on-raw", ...early, "reader");
  },
  (flow) => {
    const round = ROWS.filter((kind) => flow.upstream(kind).has(kind));
    return when(round.length > 0, "cycle", ...round);
  },
  scheduled,
  (flow) => {
    const alone = ROWS.filter((kind) => flow.has(kind) && !["landing", "script"].includes(kind));
    const first = flow.has("landing") ? [] : ["raw", "rejected"];
    const loose = alone.filter((kind) => !flow.feeds(kind).length && !first.includes(kind));
    return when(loose.length > 0, "no-input", ...loose);
  },
  (flow) => {
    const open = Object.keys(flow.pieces).filter((kind) =>
      Object.keys(KINDS[kind].choices ?? {}).some((name) => !flow.pieces[kind][name]),
    );
    return when(open.length > 0, "open-choice", ...open);
  },
];

function twoLoads(flow) {
  const doubled = ["raw", "staging", "target"].filter((kind) => flow.loads(kind).length > 1);
  const repaired = ["current", "corrections"].filter(
    (kind) => flow.loads(kind).length > 1 && flow.loads(kind).includes("script"),
  );
  const all = [...doubled, ...repaired];
  return when(all.length > 0, "two-load-paths", ...all);
}

function checked(flow) {
  const after = flow.edge("target", "checks");
  // Readers may also be kept from a table until the checks have passed.
  const held = after && flow.edge("checks", "reader") && !flow.edge("target", "reader");
  if (flow.edge("checks", "target") || held) return [];
  return when(true, after ? "checks-after" : "no-checks", ...(after ? ["checks"] : []), "target");
}

function lateRows(flow) {
  const late = flow.feeds("late");
  if (late.length && !late.some((from) => ["landing", "raw"].includes(from))) {
    return when(true, "late-from-staging", "late");
  }
  const lost = !["current", "corrections"].some((kind) => flow.has(kind) && flow.knowsLate(kind));
  return when(lost, "late-rows-lost", ...["late", "corrections"].filter((kind) => flow.has(kind)));
}

function scheduled(flow) {
  if (!flow.edges.some(([from]) => from === "orchestrator")) {
    return when(true, "no-orchestrator", ...(flow.has("orchestrator") ? ["orchestrator"] : []));
  }
  const tables = ["raw", "staging", "target", "late", "current", "corrections"];
  const idle = tables.filter(
    (kind) => flow.has(kind) && flow.feeds(kind).length && !flow.started(kind),
  );
  return when(idle.length > 0, "not-started", ...idle);
}

/** All that is wrong with a sketch; nothing if it survives backfills. */
export function graded(sketch) {
  const flow = new Flow(sketch);
  if (!flow.has("target")) return [{ finding: "no-target", about: [] }];
  return RULES.flatMap((rule) => rule(flow));
}
