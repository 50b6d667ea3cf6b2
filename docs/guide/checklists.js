// The lists of the page become boxes to check; what is checked is kept by the item's words.

import { element, keep, kept, spoken } from "./guide.js";

let checked = new Set(kept("checklists", []));

/** A list of the page, with a box for each item, a count, and a button that clears it. */
function checklist(heading) {
  const list = heading.nextElementSibling;
  const name = heading.firstChild.textContent;
  const status = spoken();
  const boxes = [...list.children].map((item) => {
    const title = item.querySelector("strong");
    const key = `${name}: ${title.textContent}`;
    const box = element("input", {
      type: "checkbox",
      onchange: () => {
        if (box.checked) checked.add(key);
        else checked.delete(key);
        save();
      },
    });
    box.checked = checked.has(key);
    const label = element("label", {}, box, " ");
    title.replaceWith(label);
    label.append(title);
    return [key, box];
  });

  function save() {
    keep("checklists", [...checked]);
    count();
  }

  function count() {
    const done = boxes.filter(([, box]) => box.checked).length;
    status.textContent = `${done} of ${boxes.length} done.`;
  }

  function clear() {
    for (const [key, box] of boxes) {
      checked.delete(key);
      box.checked = false;
    }
    save();
  }

  const button = element("button", { type: "button", onclick: clear }, `Clear "${name}"`);
  const around = element("div", { class: "guide checked" });
  list.replaceWith(around);
  around.append(list, status, button);
  count();
}

// The words of items change with the page: what is kept of others is let go.
const headings = [...document.querySelectorAll("h2")].filter(
  (heading) => heading.nextElementSibling?.tagName === "UL",
);
const items = headings.flatMap((heading) =>
  [...heading.nextElementSibling.querySelectorAll(":scope > li > strong")].map(
    (title) => `${heading.firstChild.textContent}: ${title.textContent}`,
  ),
);
checked = new Set(items.filter((key) => checked.has(key)));
headings.forEach(checklist);
