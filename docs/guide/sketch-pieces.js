// The pieces of a sketched pipeline, and how a sketch changes. No drawing: all functions are pure.
//
// A sketch is {pieces: {kind: {x, y, ...choices}}, edges: [[from, to], ...]}. A kind is there once.

const WRITES = { replaces: "replaces its partitions", appends: "appends its rows" };

/** By kind: its name, what it is, where it stands at first, and what is to be chosen of it. */
export const KINDS = {
  landing: { name: "landing zone", is: "files as the source sends them", at: [80, 200] },
  raw: {
    name: "raw log",
    is: "what arrived, by arrival day",
    at: [240, 200],
    choices: {
      keeps: {
        label: "a new delivery",
        options: { all: "is kept beside what was there", newest: "overwrites what was there" },
      },
    },
  },
  staging: { name: "staging", is: "each order once, in its latest version", at: [400, 200] },
  target: {
    name: "target table",
    is: "the sums that readers use",
    at: [590, 200],
    choices: {
      by: {
        label: "partitioned by",
        options: { event: "the day of the event", arrival: "the day of arrival" },
      },
      writes: { label: "a run", options: WRITES },
    },
  },
  late: { name: "late orders", is: "lines that came after their day had closed", at: [430, 287] },
  current: { name: "current view", is: "the sums with all that is known now", at: [400, 395] },
  corrections: { name: "corrections", is: "what is known beyond the target", at: [590, 295] },
  reader: { name: "dashboard", is: "who reads", at: [750, 300] },
  orchestrator: { name: "orchestrator", is: "the schedule that starts runs", at: [160, 50] },
  checks: { name: "checks", is: "the audit of the rows of a day", at: [480, 50] },
  rejected: { name: "rejected lines", is: "lines that cannot be read", at: [240, 300] },
  lateness: { name: "lateness report", is: "how late lines came", at: [240, 390] },
  script: { name: "load script", is: "a second script, for repairs", at: [80, 300] },
};

/** The drawing is so wide and high; so is a piece, around its place, without its circle. */
export const SIZE = { width: 840, height: 440, piece: [130, 46] };

export const EMPTY = { pieces: {}, edges: [] };

const within = (least, value, most) => Math.max(least, Math.min(most, Math.round(value)));

/** A place in the drawing, so that a piece there is whole. */
export function place(x, y) {
  const [wide, high] = SIZE.piece;
  return {
    x: within(wide / 2 + 2, x, SIZE.width - wide / 2 - 12),
    y: within(high / 2 + 2, y, SIZE.height - high / 2 - 2),
  };
}

/** With a piece more, at a place or where its kind stands at first. */
export function added(sketch, kind, x, y) {
  if (sketch.pieces[kind]) return sketch;
  const [left, top] = KINDS[kind].at;
  const piece = place(x ?? left, y ?? top);
  return { ...sketch, pieces: { ...sketch.pieces, [kind]: piece } };
}

/** Without a piece and its edges. */
export function removed(sketch, kind) {
  const { [kind]: _, ...pieces } = sketch.pieces;
  return { pieces, edges: sketch.edges.filter((edge) => !edge.includes(kind)) };
}

/** With a piece at another place. */
export function moved(sketch, kind, x, y) {
  const piece = { ...sketch.pieces[kind], ...place(x, y) };
  return { ...sketch, pieces: { ...sketch.pieces, [kind]: piece } };
}

/** With a choice made: `name` of `KINDS[kind].choices`. */
export function chosen(sketch, kind, name, value) {
  const piece = { ...sketch.pieces[kind], [name]: value };
  return { ...sketch, pieces: { ...sketch.pieces, [kind]: piece } };
}

/** With an edge more; the same sketch if it is there, or leads from a piece to itself. */
export function connected(sketch, from, to) {
  const there = sketch.edges.some((edge) => edge[0] === from && edge[1] === to);
  if (there || from === to || !sketch.pieces[from] || !sketch.pieces[to]) return sketch;
  return { ...sketch, edges: [...sketch.edges, [from, to]] };
}

/** Without an edge. */
export function disconnected(sketch, from, to) {
  const edges = sketch.edges.filter((edge) => edge[0] !== from || edge[1] !== to);
  return { ...sketch, edges };
}

/** A sketch that may have been kept by another version of the page, without what is unknown. */
export function known(sketch) {
  const pieces = Object.entries(sketch?.pieces ?? {}).filter(([kind]) => KINDS[kind]);
  return (sketch?.edges ?? []).reduce(
    (found, [from, to]) => connected(found, from, to),
    { pieces: Object.fromEntries(pieces), edges: [] },
  );
}

/** A sketch of pieces where they stand at first, each with its choices, and edges "a > b". */
export function sketched(pieces, ...edges) {
  const all = Object.entries(pieces).reduce(
    (sketch, [kind, choices]) =>
      Object.entries(choices).reduce(
        (of, [name, value]) => chosen(of, kind, name, value),
        added(sketch, kind),
      ),
    EMPTY,
  );
  return edges.reduce((sketch, edge) => connected(sketch, ...edge.split(" > ")), all);
}

const GOOD = { by: "event", writes: "replaces" };
const PIECES = {
  landing: {},
  raw: { keeps: "all" },
  staging: {},
  target: GOOD,
  current: {},
  corrections: {},
  reader: {},
  orchestrator: {},
  checks: {},
};
const FLOW = [
  ...["landing > raw", "raw > staging", "staging > target", "raw > current"],
  ...["target > corrections", "current > corrections", "target > reader", "current > reader"],
];

/** One of the sketches that are right. */
export const SOLUTION = sketched(
  { ...PIECES, late: {} },
  ...[...FLOW, "raw > late", "orchestrator > raw", "checks > target"],
);

/** Sketches that are wrong in one way each, by what is said of them. */
export const STARTS = {
  "The Mondays are wrong": sketched(
    { ...PIECES, target: { ...GOOD, by: "arrival" } },
    ...[...FLOW, "orchestrator > raw", "checks > target"],
  ),
  "A script repairs bad days": sketched(
    { ...PIECES, script: {} },
    ...[...FLOW, "orchestrator > raw", "checks > target", "landing > script", "script > target"],
  ),
  "An alarm comes in the morning": sketched(
    PIECES,
    ...[...FLOW, "orchestrator > raw", "target > checks"],
  ),
};
