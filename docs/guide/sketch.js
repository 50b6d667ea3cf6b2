// The page "Sketch the DAG": a drawing and a list of the same sketch, and what is wrong with it.

import { element, keep, kept, spoken } from "./guide.js";
import { shown } from "./shown.js";
import { Drawing, follow } from "./sketch-drawing.js";
import * as of from "./sketch-pieces.js";
import { graded } from "./sketch-rules.js";

const { KINDS } = of;
const nameOf = (kind) => KINDS[kind].name;
const words = await (await fetch("sketch.json")).json();

let sketch = of.known(kept("sketch", of.EMPTY));
let findings; // What was found; nothing while the sketch has not been graded since it changed.
let start; // The piece that an edge is to come from, by the keyboard.

const status = spoken();
const say = (text) => {
  status.textContent = text;
};

/** Another sketch; what was found holds for the old one. */
function change(next, text) {
  if (next === sketch) return say("Nothing has changed.");
  const before = findings;
  [sketch, findings, start] = [next, undefined, undefined];
  keep("sketch", sketch);
  render();
  return say(before ? `${text} Grade the sketch again.` : text);
}

const edits = {
  added(kind, x, y) {
    change(of.added(sketch, kind, x, y), `${nameOf(kind)} is added.`);
    drawing.focus(kind);
  },
  moved(kind, x, y) {
    sketch = of.moved(sketch, kind, x, y);
    keep("sketch", sketch);
    render();
    const { x: left, y: top } = sketch.pieces[kind];
    say(`${nameOf(kind)} is ${left} from the left and ${top} from the top.`);
  },
  removed(kind) {
    change(of.removed(sketch, kind), `${nameOf(kind)} is removed.`);
    palette.querySelector(`[data-add="${kind}"]`).focus();
  },
  connected(from, to) {
    start = undefined;
    change(of.connected(sketch, from, to), `An edge from ${nameOf(from)} to ${nameOf(to)}.`);
    render();
  },
  disconnected(from, to) {
    const text = `The edge from ${nameOf(from)} to ${nameOf(to)} is removed.`;
    change(of.disconnected(sketch, from, to), text);
  },
  /** The first of two pieces is where an edge comes from, the second where it goes. */
  started(kind) {
    if (start && start !== kind) return edits.connected(start, kind);
    start = start ? undefined : kind;
    render();
    return say(
      start
        ? `An edge from ${nameOf(kind)}: go to another piece and press Enter. Escape ends it.`
        : "No edge is begun.",
    );
  },
  stopped() {
    start = undefined;
    render();
    say("No edge is begun.");
  },
};

const drawing = new Drawing(edits);

/** A button that adds a piece when it is pressed, or where it is dropped in the drawing. */
function adder(kind) {
  const button = element(
    "button",
    {
      type: "button",
      "data-add": kind,
      title: KINDS[kind].is,
      // A click that follows a drag finds the piece there already.
      onclick: () => sketch.pieces[kind] || edits.added(kind),
      onpointerdown: (event) => {
        if (event.button) return;
        follow(
          event,
          () => {},
          (later) => {
            const at = later && drawing.point(later);
            if (at) edits.added(kind, at.x, at.y);
          },
        );
      },
    },
    `+ ${nameOf(kind)}`,
  );
  return button;
}

const palette = element(
  "div",
  { role: "group", "aria-label": "Add a piece", class: "palette" },
  ...Object.keys(KINDS).map(adder),
);

function options(entries, selected) {
  return entries.map(([value, text]) =>
    element("option", { value, selected: value === selected }, text),
  );
}

function choice(kind, name) {
  const { label, options: offered } = KINDS[kind].choices[name];
  const select = element(
    "select",
    {
      "data-key": `${kind} ${name}`,
      onchange: () => change(of.chosen(sketch, kind, name, select.value), "Chosen."),
    },
    ...options([["", "choose"], ...Object.entries(offered)], sketch.pieces[kind][name] ?? ""),
  );
  return element("label", {}, `${label} `, select, " ");
}

const remover = (key, label, onclick) =>
  element("button", { type: "button", "data-key": key, "aria-label": label, onclick }, "remove");

function pieceItem(kind) {
  const choices = Object.keys(KINDS[kind].choices ?? {}).map((name) => choice(kind, name));
  const button = remover(`remove ${kind}`, `Remove ${nameOf(kind)}`, () => {
    change(of.removed(sketch, kind), `${nameOf(kind)} is removed.`);
    add.focus();
  });
  return element("li", {}, nameOf(kind), choices.length ? ": " : " ", ...choices, " ", button);
}

function edgeItem([from, to]) {
  const label = `Remove the edge from ${nameOf(from)} to ${nameOf(to)}`;
  const button = remover(`edge ${from} ${to}`, label, () => {
    edits.disconnected(from, to);
    source.focus();
  });
  return element("li", {}, `${nameOf(from)} → ${nameOf(to)} `, button);
}

const select = (id) => element("select", { id });
const [add, source, aim] = [select("sketch-add"), select("sketch-from"), select("sketch-to")];
const [pieces, edges] = [element("ul", {}), element("ul", {})];
const button = (text, onclick) => element("button", { type: "button", onclick }, text);

const result = element("div", { class: "result", tabindex: -1 });

const form = element(
  "section",
  { "aria-labelledby": "sketch-list", class: "list" },
  element("h3", { id: "sketch-list" }, "The same as a list"),
  element("h4", {}, "Pieces"),
  pieces,
  element("label", { for: "sketch-add" }, "Piece "),
  add,
  " ",
  button("Add", () => {
    if (!add.value) return say("All pieces are there.");
    return change(of.added(sketch, add.value), `${nameOf(add.value)} is added.`);
  }),
  element("h4", {}, "Edges"),
  edges,
  element("label", { for: "sketch-from" }, "From "),
  source,
  element("label", { for: "sketch-to" }, " to "),
  aim,
  " ",
  button("Draw the edge", () => {
    if (!source.value || !aim.value) return say("Choose two pieces.");
    return edits.connected(source.value, aim.value);
  }),
  // The findings are above the list: whoever works with the list is brought there.
  element("p", {}, button("Grade, and go to the findings", () => {
    grade();
    result.focus();
  })),
);


function finding({ finding: name, about }) {
  const { title, why, shown_by: by } = words[name];
  const concerned = about.length ? ` (${about.map(nameOf).join(", ")})` : "";
  const head = element("p", {}, element("strong", { class: "bad" }, title), concerned);
  return element("li", { "data-finding": name }, head, element("p", {}, why), shown(by));
}

function grade() {
  findings = graded(sketch);
  render();
  const count = findings.length === 1 ? "1 finding." : `${findings.length} findings.`;
  say(findings.length ? count : "Nothing is found: this pipeline survives backfills.");
}

/** What is chosen stays chosen as long as it is offered. */
function offer(into, kinds, first) {
  const before = into.value;
  const entries = kinds.map((kind) => [kind, nameOf(kind)]);
  into.replaceChildren(...options([["", first], ...entries], before));
  into.value = kinds.includes(before) ? before : "";
}

function render() {
  const focused = document.activeElement?.dataset?.key;
  const there = Object.keys(sketch.pieces);
  drawing.show(sketch, (findings ?? []).flatMap(({ about }) => about), start);
  for (const one of palette.children) one.disabled = one.dataset.add in sketch.pieces;
  pieces.replaceChildren(...there.map(pieceItem));
  edges.replaceChildren(...sketch.edges.map(edgeItem));
  offer(add, Object.keys(KINDS).filter((kind) => !sketch.pieces[kind]), "choose");
  offer(source, there, "choose");
  offer(aim, there, "choose");
  const listed = (findings ?? []).map(finding);
  result.replaceChildren(...(listed.length ? [element("ol", {}, ...listed)] : []));
  if (focused) form.querySelector(`[data-key="${focused}"]`)?.focus();
}

const begin = element("select", { id: "sketch-begin" });
const starts = Object.keys(of.STARTS).map((name) => [name, name]);
begin.append(...options([["", "an empty sketch"], ...starts]));

const top = element(
  "div",
  { class: "top" },
  element("label", { for: "sketch-begin" }, "Begin with "),
  begin,
  " ",
  button("Begin", () => change(of.STARTS[begin.value] ?? { ...of.EMPTY }, "Begun.")),
  button("Show a solution", () => change({ ...of.SOLUTION }, "One sketch that is right.")),
);

const keys = element(
  "p",
  { id: "sketch-keys", class: "keys" },
  "Drag a piece to move it. Drag its circle to another piece to draw an edge; ",
  "click an edge to remove it. By keyboard, on a piece: arrow keys move it, ",
  "Enter begins an edge and ends it at another piece, Escape gives it up, Delete removes the ",
  "piece. The list below does the same, and removes edges.",
);

document
  .getElementById("sketch")
  .replaceChildren(
    top,
    palette,
    element("div", { class: "wide" }, drawing.node),
    keys,
    element("p", {}, button("Grade the sketch", grade)),
    status,
    result,
    form,
  );
render();
