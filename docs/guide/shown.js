// Texts of data files as elements: code between backticks, and what shows a claim as links.

import { element } from "./guide.js";

/** The sections of the page of the labs, by lab. */
export const LABS = {
  append: "append-a-backfill-that-doubles-three-years",
  torn: "torn-a-reader-that-sees-an-empty-day",
  overwrite: "overwrite-a-day-that-takes-the-others-with-it",
  merge: "merge-what-a-merge-by-key-does-not-do",
  dedup: "dedup-an-order-that-is-left-to-chance",
  "event-time": "event-time-mondays-order-that-arrives-on-wednesday",
  late: "late-a-line-that-comes-after-its-day-has-closed",
  crash: "crash-six-months-killed-in-the-fourth",
  skew: "skew-one-customer-with-most-of-the-rows",
  leak: "leak-an-order-of-2021-that-knows-of-2026",
  column: "column-a-column-that-comes-after-years",
  swap: "swap-another-definition-in-place-and-beside-production",
  quota: "quota-ten-million-rows-and-a-service-that-counts-calls",
};

/** A link of a page's source, as the built page has it. */
const built = (href) => href.replace(/\.md(?=#|$)/, ".html");

function piece(told) {
  const lab = told.match(/^lab `([\w-]+)`$/);
  if (lab) {
    return element("a", { href: `simulators.html#${LABS[lab[1]] ?? ""}` }, `lab ${lab[1]}`);
  }
  const link = told.match(/^\[([^\]]+)\]\(([^)]+)\)$/);
  if (link) return element("a", { href: built(link[2]) }, link[1]);
  return element("code", {}, told.replaceAll("`", ""));
}

/** A paragraph of what shows a claim: labs and pages are links, tests are named. */
export function shown(by) {
  const parts = by.split(";").map((told) => piece(told.trim()));
  const joined = parts.flatMap((part, at) => (at ? ["; ", part] : [part]));
  return element("p", { class: "shown" }, "Shown by: ", ...joined, ".");
}

/** A text in which what stands between backticks is code. */
export function worded(text) {
  return text.split("`").map((part, at) => (at % 2 ? element("code", {}, part) : part));
}
