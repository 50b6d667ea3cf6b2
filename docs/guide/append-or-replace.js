// The simulator "append or replace": draws what the rules say, and takes clicks and keys.
import { element, spoken } from "./guide.js";
import { button, choice, log, table, toggle } from "./parts.js";
import { CRASHES, DAYS, WAYS, backfill, compared, lesson, seen, source } from "./append-or-replace-rules.js";

const SIZES = { all: "one for all days", day: "one for each day" };
/** With a job for each day, the third one crashes. */
const THIRD = 2;
const SIGNS = { right: "✓ right" };
const money = (amount) => amount.toFixed(2);

function start() {
  return { table: [], commits: 0, next: null, runs: 0 };
}

function page(root) {
  const asked = { way: "append", size: "all", crash: "none" };
  const facts = {};
  let now = start();
  const said = spoken();
  const place = element("div");
  const done = log("What was done");
  const choices = [
    choice("Way of writing", WAYS, (value) => (asked.way = value)),
    choice("Jobs", SIZES, (value) => {
      asked.size = value;
      now.next = null;
      draw();
    }),
    choice("Crash of the job (of each day: the third)", CRASHES, (value) => (asked.crash = value)),
  ];
  const begin = button("Run", () => run(0));
  const goOn = button("Go on with the failed job", () => {
    run(now.next);
    // A button that is switched off would lose the keyboard.
    if (goOn.disabled) begin.focus();
  });
  const toggles = [
    ["corrected", "Price of shop c: 12, not 10"],
    ["withdrawn", "Row of shop b on day 3 is taken away"],
    ["keyless", "Row without a key on day 4"],
    ["old", "Shop a on day 2: version 1 again, with 99"],
  ].map(([name, text]) =>
    toggle(text, (on) => {
      facts[name] = on;
      draw();
    }),
  );

  function run(from) {
    const chunks = asked.size === "all" ? [DAYS] : DAYS.map((day) => [day]);
    const at = asked.size === "all" ? 0 : THIRD;
    const { delivered, right } = source(facts);
    const before = now.table;
    const made = backfill(asked.way, before, delivered, chunks, { crash: asked.crash, at, from });
    now = { ...made, commits: now.commits + made.commits, runs: now.runs + 1 };
    const ended = made.next === null ? "success" : `job ${made.next + 1} failed`;
    draw();
    done.tell(
      `Run ${now.runs}, ${WAYS[asked.way]}: ${ended}, ${made.commits} commit(s). ${sight()}`,
      lesson(asked.way, made.next === null ? "none" : asked.crash, before, made.table, right),
    );
  }

  function sight() {
    const { right } = source(facts);
    const [reader, should] = [now.table, right].map(seen);
    const days = compared(now.table, right, DAYS);
    const wrong = days.filter((day) => day.verdict !== "right");
    const empty = wrong.filter((day) => day.verdict === "empty").length;
    return (
      `Readers see ${reader.rows} rows, total ${money(reader.total)}; right: ${should.rows} rows, ` +
      `total ${money(should.total)}. Wrong days: ${wrong.length}, of them empty: ${empty}.`
    );
  }

  function draw() {
    const days = compared(now.table, source(facts).right, DAYS);
    said.textContent = sight();
    goOn.disabled = now.next === null;
    place.replaceChildren(
      table(
        `The table, after ${now.commits} commit(s)`,
        ["day", "the day is", "rows: reader", "rows: right", "total: reader", "total: right"],
        days.map(({ day, reader, right, verdict }) => [
          `day ${day}`, [SIGNS[verdict] ?? `✗ ${verdict}`, verdict === "right" ? "good" : "bad"],
          String(reader.rows), String(right.rows), money(reader.total), money(right.total),
        ]),
      ),
    );
  }

  function reset() {
    now = start();
    choices.forEach(({ select }) => (select.selectedIndex = 0));
    Object.assign(asked, { way: "append", size: "all", crash: "none" });
    toggles.forEach((of) => of.setAttribute("aria-pressed", "false"));
    Object.keys(facts).forEach((name) => delete facts[name]);
    done.clear();
    draw();
  }

  root.append(
    ...choices.map(({ box }) => box),
    element("p", { role: "group", "aria-label": "The source" }, "The source: ", ...toggles),
    element("p", {}, begin, goOn, button("Reset", reset)),
    said,
    place,
    done.box,
  );
  draw();
}

page(document.getElementById("sim-append"));
