// The drawing of a sketched pipeline, and what a pointer and a keyboard do to it.

import { KINDS, SIZE } from "./sketch-pieces.js";

const SVG = "http://www.w3.org/2000/svg";
const STEP = 20;
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

function shape(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Where the line from the middle of a piece to a point leaves the piece. */
function border(from, to) {
  const [wide, high] = SIZE.piece;
  const [dx, dy] = [to.x - from.x, to.y - from.y];
  const part = Math.min(wide / 2 / Math.abs(dx || 1e-9), high / 2 / Math.abs(dy || 1e-9), 1);
  return { x: from.x + dx * part, y: from.y + dy * part };
}

function line(from, to, of = {}) {
  const [one, other] = [border(from, to), border(to, from)];
  const ends = { x1: one.x, y1: one.y, x2: other.x, y2: other.y };
  return shape("line", { ...ends, "marker-end": "url(#sketch-arrow)", ...of });
}

/** Two lines of a name that is too long for one. */
function label(name) {
  const at = name.length > 15 ? name.lastIndexOf(" ") : -1;
  const lines = at > 0 ? [name.slice(0, at), name.slice(at + 1)] : [name];
  return lines.map((text, n) =>
    shape("text", { "text-anchor": "middle", y: 5 + (n - (lines.length - 1) / 2) * 17 }, text),
  );
}

/** In words, a piece with what it has edges from and to. */
export function told(sketch, kind, concerned) {
  const named = (edges, at) => edges.map((edge) => KINDS[edge[at]].name).join(", ");
  const [before, after] = [1, 0].map((at) => sketch.edges.filter((edge) => edge[at] === kind));
  return [
    KINDS[kind].name,
    ...(before.length ? [`edges from ${named(before, 0)}`] : []),
    ...(after.length ? [`edges to ${named(after, 1)}`] : []),
    ...(concerned ? ["a finding concerns it"] : []),
  ].join("; ");
}

/**
 * A drawing.
 *
 * `on` is told what somebody does: moved(kind, x, y), connected(from, to), disconnected(from, to),
 * removed(kind), started(kind) for the piece that an edge is to come from, and stopped().
 */
export class Drawing {
  constructor(on) {
    this.on = on;
    const { width, height } = SIZE;
    this.node = shape("svg", {
      viewBox: `0 0 ${width} ${height}`,
      role: "group",
      "aria-label": "The drawing",
      "aria-describedby": "sketch-keys",
    });
    this.edges = shape("g", {});
    this.pieces = shape("g", {});
    this.draft = shape("g", {});
    const tip = shape("path", { d: "M0,0 L10,5 L0,10 z" });
    const arrow = { viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 8, markerHeight: 8 };
    const marker = shape("marker", { id: "sketch-arrow", orient: "auto", ...arrow }, tip);
    this.node.append(shape("defs", {}, marker), this.edges, this.pieces, this.draft);
  }

  /** Draw a sketch; `concerned` are the kinds that findings are about, `start` begins an edge. */
  show(sketch, concerned, start) {
    this.sketch = sketch;
    this.again = () => this.show(sketch, concerned, start);
    const focused = this.pieces.contains(document.activeElement)
      ? document.activeElement.dataset.kind
      : undefined;
    this.edges.replaceChildren(...sketch.edges.map((edge) => this.edge(...edge)));
    this.pieces.replaceChildren(
      ...Object.keys(sketch.pieces).map((kind) =>
        this.piece(kind, concerned.includes(kind), kind === start),
      ),
    );
    if (focused) this.focus(focused);
  }

  /** Give the keyboard to a piece. */
  focus(kind) {
    this.pieces.querySelector(`[data-kind="${kind}"]`)?.focus();
  }

  /** Where a pointer is in the drawing; nothing if it is outside. */
  point(event) {
    const box = this.node.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    if (x < 0 || y < 0 || x > box.width || y > box.height) return undefined;
    const scale = SIZE.width / box.width;
    return { x: x * scale, y: y * scale };
  }

  edge(from, to) {
    const { [from]: one, [to]: other } = this.sketch.pieces;
    const control = ["orchestrator", "checks"].some((kind) => [from, to].includes(kind));
    const drawn = line(one, other, control ? { class: "control" } : {});
    // A wide line under the thin one is easier to hit.
    const wide = line(one, other, { class: "hit" });
    const title = `${KINDS[from].name} to ${KINDS[to].name}: click to remove`;
    wide.append(shape("title", {}, title));
    wide.addEventListener("click", () => this.on.disconnected(from, to));
    return shape("g", { "data-edge": `${from} ${to}` }, drawn, wide);
  }

  piece(kind, concerned, start) {
    const { x, y } = this.sketch.pieces[kind];
    const [wide, high] = SIZE.piece;
    const box = { x: -wide / 2, y: -high / 2, width: wide, height: high, rx: 6 };
    const handle = shape("circle", { class: "handle", cx: wide / 2, r: 9 });
    // What a finger hits is wider than what is drawn.
    const reach = shape("circle", { class: "reach", cx: wide / 2, r: 17 });
    handle.append(shape("title", {}, `Drag to another piece: an edge from ${KINDS[kind].name}`));
    const made = shape(
      "g",
      {
        class: ["piece", concerned ? "concerned" : "", start ? "start" : ""].join(" "),
        "data-kind": kind,
        transform: `translate(${x} ${y})`,
        tabindex: 0,
        role: "button",
        "aria-pressed": start,
        "aria-label": told(this.sketch, kind, concerned),
      },
      shape("rect", box),
      ...label(KINDS[kind].name),
      ...(concerned ? [shape("text", { class: "mark", x: -wide / 2 + 9, y: -6 }, "!")] : []),
      reach,
      handle,
    );
    made.addEventListener("keydown", (event) => this.key(event, kind));
    made.addEventListener("pointerdown", (event) => this.grab(event, kind, made, [handle, reach]));
    return made;
  }

  key(event, kind) {
    const { x, y } = this.sketch.pieces[kind];
    if (MOVES[event.key]) {
      const [across, down] = MOVES[event.key];
      this.on.moved(kind, x + across * STEP, y + down * STEP);
    } else if (event.key === "Enter" || event.key === " ") {
      this.on.started(kind);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.on.removed(kind);
    } else if (event.key === "Escape") {
      this.on.stopped();
    } else {
      return;
    }
    event.preventDefault();
  }

  /** A pointer moves a piece, or pulls an edge out of its handle. */
  grab(event, kind, made, handles) {
    if (event.button) return;
    event.preventDefault();
    made.focus();
    const pulls = handles.includes(event.target);
    const piece = this.sketch.pieces[kind];
    const first = this.point(event) ?? piece;
    const at = (later) => {
      const there = this.point(later) ?? first;
      return { x: piece.x + there.x - first.x, y: piece.y + there.y - first.y };
    };
    follow(
      event,
      (later) => {
        if (pulls) this.draft.replaceChildren(line(piece, this.point(later) ?? first));
        else made.setAttribute("transform", `translate(${at(later).x} ${at(later).y})`);
      },
      (later) => {
        this.draft.replaceChildren();
        if (!later) return this.again();
        if (!pulls) return this.on.moved(kind, at(later).x, at(later).y);
        const under = document.elementFromPoint(later.clientX, later.clientY);
        const other = under?.closest("[data-kind]");
        if (other) this.on.connected(kind, other.dataset.kind);
        return undefined;
      },
    );
  }
}

/**
 * Follow a pointer from where it went down.
 *
 * `move` is told each place, and `end` the last one if it has moved; nothing, if it was taken away,
 * as by a scrolling finger.
 */
export function follow(event, move, end) {
  const first = [event.clientX, event.clientY];
  let dragged = false;
  const moved = (later) => {
    if (later.pointerId !== event.pointerId) return;
    dragged ||= Math.hypot(later.clientX - first[0], later.clientY - first[1]) > 4;
    if (dragged) move(later);
  };
  const ended = (later) => {
    if (later.pointerId !== event.pointerId) return;
    document.removeEventListener("pointermove", moved);
    document.removeEventListener("pointerup", ended);
    document.removeEventListener("pointercancel", ended);
    if (later.type === "pointercancel") end(undefined);
    else if (dragged) end(later);
  };
  document.addEventListener("pointermove", moved);
  document.addEventListener("pointerup", ended);
  document.addEventListener("pointercancel", ended);
}
