// The simulator "workers under skew": draws what the rules say, and takes clicks and keys.
import { element, spoken } from "./guide.js";
import { button, choice, slider, table } from "./parts.js";
import { FORMS, orders, scheduled, stage } from "./skew-sim-rules.js";

const [ROWS, FILES, COUNT] = [40000, 8, 1000];
const CUSTOMERS = Array.from({ length: COUNT }, (_, at) => `c-${at}`);
const START = { hot: 60, nulls: 20, tasks: 8, workers: 4, form: "plain" };
const spelled = (value) => Math.round(value).toLocaleString("en");

function page(root) {
  let asked = { ...START };
  const said = spoken();
  const places = [element("div"), element("div")];
  const controls = {
    hot: slider("Rows of one customer (%)", [0, 90, START.hot], (hot) => change({ hot })),
    nulls: slider("Rows of no customer (%)", [0, 90, START.nulls], (nulls) => change({ nulls })),
    tasks: slider("Tasks", [1, 32, START.tasks], (tasks) => change({ tasks })),
    workers: slider("Workers", [1, 16, START.workers], (workers) => change({ workers })),
  };
  const form = choice("Query", FORMS, (value) => change({ form: value }));

  function change(what) {
    Object.assign(asked, what);
    // Both shares make at most the whole.
    if (asked.hot + asked.nulls > 100) {
      const other = "hot" in what ? "nulls" : "hot";
      asked[other] = 100 - asked["hot" in what ? "hot" : "nulls"];
      controls[other].set(asked[other]);
    }
    draw();
  }

  function draw() {
    const files = orders({ rows: ROWS, files: FILES, customers: COUNT, hot: asked.hot, nulls: asked.nulls });
    const found = Object.fromEntries(Object.keys(FORMS).map((name) => {
      const of = stage(name, files, CUSTOMERS, asked.tasks);
      const busy = of.tasks.filter((task) => task.rows);
      const largest = Math.max(...busy.map((task) => task.rows));
      return [name, { ...of, ...scheduled(of.tasks, asked.workers), busy: busy.length, largest }];
    }));
    const now = found[asked.form];
    const times = (now.time / now.even).toFixed(1);
    said.textContent =
      `${FORMS[asked.form]}: the longest of ${asked.workers} worker(s) takes the time of ${spelled(now.time)} rows, ${times} times the ` +
      `even share. Largest task: ${spelled(now.largest)} rows. Orders are read ${now.scans} time(s), ` +
      `${spelled(now.copies)} row(s) of customers are copied.`;
    const longest = now.workers.findIndex((worker) => worker.time === now.time);
    places[0].replaceChildren(table(
      `Workers: ${FORMS[asked.form]}`, ["worker", "tasks", "time (rows)", "as a bar"],
      now.workers.map((worker, at) => [
        `worker ${at + 1}${at === longest ? " (longest)" : ""}`, String(worker.tasks.length), spelled(worker.time),
        element("span", { class: at === longest ? "bar longest" : "bar", style: `width: ${(120 * worker.time) / now.time}px` }),
      ]),
    ));
    places[1].replaceChildren(table(
      "All forms", ["query", "time (rows)", "times the even share", "largest task", "tasks with rows", "scans", "copied"],
      Object.entries(found).map(([name, of]) => [
        FORMS[name], spelled(of.time), (of.time / of.even).toFixed(1), spelled(of.largest), String(of.busy),
        String(of.scans), spelled(of.copies),
      ]),
    ));
  }

  function reset() {
    asked = { ...START };
    Object.entries(controls).forEach(([name, of]) => of.set(START[name]));
    form.select.value = START.form;
    draw();
  }

  root.append(
    ...Object.values(controls).map(({ box }) => box), form.box, element("p", {}, button("Reset", reset)), said, ...places,
  );
  draw();
}

page(document.getElementById("sim-skew"));
