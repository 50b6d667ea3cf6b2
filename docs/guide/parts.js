// Parts of the simulators: labelled controls, tables, and the log of what was done.
import { element } from "./guide.js";

let made = 0;

/** A labelled list of options; `options` has the texts by value. */
export function choice(label, options, onchange) {
  const id = `choice-${(made += 1)}`;
  const select = element("select", { id, onchange: () => onchange(select.value) });
  for (const [value, text] of Object.entries(options)) {
    select.append(element("option", { value }, text));
  }
  return { box: element("p", { class: "control" }, element("label", { for: id }, label), select), select };
}

/** A labelled slider over whole numbers, with its value beside it. */
export function slider(label, [least, most, value], oninput) {
  const id = `slider-${(made += 1)}`;
  const shown = element("output", { for: id }, String(value));
  const input = element("input", {
    id, type: "range", min: least, max: most, step: 1, value,
    oninput: () => {
      shown.textContent = input.value;
      oninput(Number(input.value));
    },
  });
  const set = (number) => {
    input.value = number;
    shown.textContent = String(number);
  };
  const box = element("p", { class: "control" }, element("label", { for: id }, label), input, shown);
  return { box, input, set };
}

/** A labelled field for a whole number. */
export function number(label, [least, most, value], oninput = () => {}) {
  const id = `number-${(made += 1)}`;
  const input = element("input", {
    id, type: "number", min: least, max: most, step: 1, value, required: true,
    oninput: () => oninput(Number(input.value)),
  });
  return { box: element("p", { class: "control" }, element("label", { for: id }, label), input), input };
}

/** A button that does something. */
export function button(text, onclick) {
  return element("button", { type: "button", onclick }, text);
}

/** A button that is on or off; `pressed` says so to all readers. */
export function toggle(text, onchange) {
  const made = element("button", {
    type: "button", "aria-pressed": "false",
    onclick: () => {
      const on = made.getAttribute("aria-pressed") !== "true";
      made.setAttribute("aria-pressed", String(on));
      onchange(on);
    },
  }, text);
  return made;
}

/** A table; a cell is a text, an element, or a text with the class that colours it. */
export function table(caption, heads, rows) {
  const cell = (of) => {
    const [text, kind] = Array.isArray(of) ? of : [of];
    return element("td", { class: kind }, text);
  };
  return element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    element("table", { class: "sim" },
      element("caption", {}, caption),
      element("thead", {}, element("tr", {}, ...heads.map((of) => element("th", { scope: "col" }, of)))),
      element("tbody", {}, ...rows.map(([head, ...cells]) =>
        element("tr", {}, element("th", { scope: "row" }, head), ...cells.map(cell))))));
}

/** What was done, and what it taught, the newest last. */
export function log(title) {
  const list = element("ol", { class: "log" });
  const box = element("details", { open: true }, element("summary", {}, title), list);
  return {
    box,
    tell: (done, lesson) => list.append(element("li", {}, done, " ", element("em", {}, lesson))),
    clear: () => list.replaceChildren(),
  };
}
