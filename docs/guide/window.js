// The simulator "event day and arrival day": draws what the rules say, and takes clicks and keys.
import { element, spoken } from "./guide.js";
import { button, choice, number, slider, table } from "./parts.js";
import { fate, inTime, ofLastTwoDays, state, sums, loaded, tables } from "./window-rules.js";

const [EVENTS, ARRIVALS] = [8, 16];
const LATE = { correct: "they become corrections", drop: "they are dropped" };
const FIRST = { window: 7, today: 12, corrects: true, missing: 0, run: 2 };
const LINES = [
  ["A", 1, 1, 10], ["B", 2, 2, 10], ["C", 1, 3, 10], ["D", 3, 3, 10],
  ["F", 5, 5, 10], ["D", 3, 6, 15], ["F", 6, 8, 10], ["E", 2, 11, 10],
];
const MARKS = {
  staged: "✓", superseded: "↷", "late: a correction": "✎", "late: dropped": "✗", "not loaded yet": "…",
};
const days = (count) => Array.from({ length: count }, (_, at) => at + 1);
const money = (of) => (of ? `${of.orders}: ${of.revenue.toFixed(2)}` : "–");

/** A line as the rules take it: of an order, what arrived later is the greater version. */
function line([id, event, logged, amount], place) {
  return { id, event, logged, amount, version: [logged, place] };
}

function page(root) {
  let asked, lines;
  const said = spoken();
  const places = { grid: element("div"), days: element("div"), lines: element("div") };
  const clock = element("p", { "aria-live": "polite" });
  const window_ = slider("Window (days)", [0, 7, FIRST.window], (value) => change({ window: value }));
  const today = slider("Today is day", [2, ARRIVALS + 2, FIRST.today], (value) => change({ today: value }));
  const late = choice("Late lines", LATE, (value) => change({ corrects: value === "correct" }));
  const missing = number("Arrival day that has not landed (0: none)", [0, ARRIVALS, 0], (value) =>
    change({ missing: value }));
  const run = number("The run is of day", [1, ARRIVALS, FIRST.run], (value) => change({ run: value }));
  const fields = {
    id: element("input", { id: "window-order", value: "G", size: 3, maxlength: 3 }),
    event: number("Event day", [1, EVENTS, 4]),
    logged: number("Arrival day", [1, ARRIVALS, 6]),
    amount: number("Amount", [1, 99, 20]),
  };

  function change(what) {
    Object.assign(asked, what);
    draw();
  }

  function add() {
    const [event, logged, amount] = ["event", "logged", "amount"].map((name) => Number(fields[name].input.value));
    const id = fields.id.value.trim();
    const inside = event >= 1 && event <= EVENTS && logged <= ARRIVALS && amount > 0;
    if (!id || !inside || logged < event) {
      said.textContent =
        "This line was not added: it needs a name, an amount, days that are on the calendar, and an " +
        "arrival day that is not before the event day.";
      return;
    }
    lines.push(line([id, event, logged, amount], lines.length));
    draw();
  }

  function reset() {
    asked = { ...FIRST };
    lines = LINES.map(line);
    window_.set(FIRST.window);
    today.set(FIRST.today);
    late.select.selectedIndex = 0;
    missing.input.value = FIRST.missing;
    run.input.value = FIRST.run;
    draw();
  }

  /** The days of a state, as ranges. */
  function spelled(which) {
    const found = days(EVENTS).filter((day) => state(day, asked.window, asked.today, asked.missing) === which);
    const starts = found.filter((day) => !found.includes(day - 1));
    const ends = found.filter((day) => !found.includes(day + 1));
    const ranges = starts.map((first, at) => (first === ends[at] ? `${first}` : `${first} to ${ends[at]}`));
    return ranges.join(", ") || "none";
  }

  function draw() {
    const now = tables(lines, asked);
    const fates = lines.map((of) => fate(of, lines, asked));
    const count = (which) => fates.filter((of) => of.startsWith(which)).length;
    said.textContent =
      `Window of ${asked.window} day(s), today is day ${asked.today}. Final days: ${spelled("final")}. ` +
      `Open days: ${spelled("open")}. Lines: ${count("staged")} staged, ${count("superseded")} superseded, ` +
      `${count("late")} late, ${count("not")} not loaded yet.${now.check ? ` Check late_lines: ${now.check}.` : ""}`;
    drawGrid(fates);
    drawDays(now);
    places.lines.replaceChildren(table(
      "The lines", ["line", "event day", "arrival day", "days late", "amount", "what became of it"],
      lines.map((of, at) => [
        of.id, String(of.event), String(of.logged), String(of.logged - of.event), of.amount.toFixed(2),
        `${MARKS[fates[at]]} ${fates[at]}`,
      ]),
    ));
    const [right, wrong] = [asked.run, asked.today].map((day) => ofLastTwoDays(lines, asked.run, day).length);
    clock.textContent =
      `The run of day ${asked.run}, run today (day ${asked.today}): by the day of the run it takes ${right} ` +
      `line(s). By CURRENT_DATE it takes ${wrong}.`;
  }

  function drawGrid(fates) {
    const at = (event, logged) => lines
      .map((of, place) => (of.event === event && of.logged === logged ? `${of.id} ${MARKS[fates[place]]}` : ""))
      .filter(Boolean).join(" ");
    const empty = (event, logged) => (logged < event ? "" : inTime({ event, logged }, asked.window) ? "○" : "–");
    places.grid.replaceChildren(table(
      "Event days (down) and arrival days (across)",
      ["event", ...days(ARRIVALS).map((day) => (day < asked.today && day !== asked.missing ? String(day) : `(${day})`))],
      days(EVENTS).map((event) => [
        `day ${event}, ${state(event, asked.window, asked.today, asked.missing)}`,
        ...days(ARRIVALS).map((logged) => [
          at(event, logged) || empty(event, logged),
          logged >= event && inTime({ event, logged }, asked.window) ? "inside" : "outside",
        ]),
      ]),
    ));
  }

  function drawDays(now) {
    const arrived = sums(loaded(lines, asked.today, asked.missing), "logged");
    places.days.replaceChildren(table(
      "Orders and revenue by day",
      ["day", "state", "by arrival day", "facts (by event day)", "corrections", "current"],
      days(ARRIVALS).map((day) => [
        `day ${day}`, day <= EVENTS ? state(day, asked.window, asked.today, asked.missing) : "–", money(arrived[day]),
        money(now.facts[day]), money(now.corrections[day]), money(now.current[day]),
      ]),
    ));
  }

  root.append(
    window_.box, today.box, missing.box, late.box, said, places.grid,
    element("p", {}, "○ in the window, – beyond it, (day) not loaded yet; ✓ staged, ↷ superseded, ✎ late and a " +
      "correction, ✗ late and dropped, … not loaded yet"),
    places.days,
    element("fieldset", {}, element("legend", {}, "Add a line, or a version of an order that is there"),
      element("p", { class: "control" }, element("label", { for: "window-order" }, "Order"), fields.id),
      fields.event.box, fields.logged.box, fields.amount.box, button("Add", add)),
    element("fieldset", {}, element("legend", {}, "A transform that takes the lines of the last two days"), run.box, clock),
    element("p", {}, button("Reset", reset)),
    places.lines,
  );
  reset();
}

page(document.getElementById("sim-window"));
