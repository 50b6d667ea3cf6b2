// The page of the quiz: a question at a time, with the reason of each answer once it is given.

import { element, keep, kept, spoken } from "./guide.js";
import { known, next, order, score } from "./quiz-rules.js";
import { shown, worded } from "./shown.js";

const questions = await (await fetch("quiz.json")).json();
let given = known(questions, kept("quiz", {}));
let at = next(questions, given, -1);

const status = spoken();
const place = element("div", {});
const summary = element("section", { "aria-labelledby": "quiz-read" });
const jump = element("select", {
  id: "quiz-jump",
  onchange: () => go(Number(jump.value)),
});

const button = (text, onclick, more = {}) =>
  element("button", { type: "button", onclick, ...more }, text);
const previous = button("Previous", () => go(at - 1));
const following = button("Next", () => go(at + 1));
const open = button("Next without an answer", () => go(next(questions, given, at)));

function go(to) {
  at = to;
  render();
  // The keyboard and the screen reader begin at the question.
  place.querySelector("[tabindex]").focus();
}

function marked(question) {
  if (!(question.id in given)) return "";
  return question.answers[given[question.id]].right ? " (right)" : " (wrong)";
}

/** The choice of an answer. */
function asked(question) {
  const choices = order(question).map((number) =>
    element(
      "label",
      { class: "answer" },
      element("input", { type: "radio", name: "answer", value: number, required: true }),
      " ",
      ...worded(question.answers[number].text),
    ),
  );
  const heading = element("legend", { tabindex: -1 }, ...worded(question.question));
  const submit = element("button", { type: "submit" }, "Answer");
  const form = element("form", {}, element("fieldset", {}, heading, ...choices), submit);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    given = { ...given, [question.id]: Number(new FormData(form).get("answer")) };
    keep("quiz", given);
    render();
    status.textContent = `${told(question)} ${progress()}`;
    place.querySelector("[tabindex]").focus();
  });
  return form;
}

const told = (question) =>
  question.answers[given[question.id]].right ? "That is right." : "That is wrong.";

/** All answers of a question, each with its reason. */
function explained(question) {
  const answers = order(question).map((number) => {
    const { text, right, reason } = question.answers[number];
    const own = given[question.id] === number ? " Your answer." : "";
    return element(
      "li",
      { class: "reason" },
      element("strong", { class: right ? "good" : "bad" }, right ? "Right. " : "Wrong. "),
      ...worded(text),
      element("em", {}, own),
      element("p", {}, ...worded(reason)),
    );
  });
  return element(
    "div",
    {},
    element("p", { class: "asked" }, ...worded(question.question)),
    element("p", { tabindex: -1 }, element("strong", {}, told(question))),
    element("ol", { type: "a" }, ...answers),
    shown(question.shown_by),
  );
}

function progress() {
  const { answered, right } = score(questions, given);
  return `${answered} of ${questions.length} answered, ${right} right.`;
}

function toRead() {
  const { answered, right, wrong } = score(questions, given);
  if (!wrong.length && answered < questions.length) return [];
  const heading = element("h3", { id: "quiz-read" }, "What to read");
  if (!wrong.length) return [heading, element("p", {}, `All ${right} answers are right.`)];
  const items = wrong.map((question) =>
    element("li", {}, ...worded(question.question), shown(question.shown_by)),
  );
  return [heading, element("ul", {}, ...items)];
}

function render() {
  const question = questions[at];
  const head = `Question ${at + 1} of ${questions.length}: ${question.topic}`;
  place.replaceChildren(
    element("h3", {}, head),
    question.id in given ? explained(question) : asked(question),
  );
  jump.replaceChildren(
    ...questions.map((one, number) =>
      element(
        "option",
        { value: number, selected: number === at },
        `${number + 1}. ${one.topic}${marked(one)}`,
      ),
    ),
  );
  previous.disabled = at === 0;
  following.disabled = at === questions.length - 1;
  open.disabled = score(questions, given).answered === questions.length;
  summary.replaceChildren(...toRead());
  status.textContent = progress();
}

const again = button("Forget all answers", () => {
  given = {};
  keep("quiz", given);
  go(0);
});

document
  .getElementById("quiz-page")
  .replaceChildren(
    place,
    status,
    element("p", {}, previous, following, open),
    element("p", {}, element("label", { for: "quiz-jump" }, "Go to "), jump, " ", again),
    summary,
  );
render();
