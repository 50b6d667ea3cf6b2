// The quiz without its page: in which order answers stand, and the score. All functions are pure.

/** A number from 0 up to 1 at each call; the same ones for the same text. */
function seeded(text) {
  const mix = (hash, of) => Math.imul(hash ^ of.charCodeAt(0), 16777619);
  let state = [...text].reduce(mix, 2166136261);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** The answers of a question as they are shown, by their places in the file: always the same. */
export function order(question) {
  const places = question.answers.map((_, place) => place);
  const random = seeded(question.id);
  for (let last = places.length - 1; last > 0; last -= 1) {
    const other = Math.floor(random() * (last + 1));
    [places[last], places[other]] = [places[other], places[last]];
  }
  return places;
}

/** What was given before, by question, without what these questions do not have. */
export function known(questions, given) {
  const there = questions.filter(({ id, answers }) => answers[given?.[id]]);
  return Object.fromEntries(there.map(({ id }) => [id, given[id]]));
}

/** How many questions are answered, how many of these right, and the wrong ones themselves. */
export function score(questions, given) {
  const answered = questions.filter(({ id }) => id in given);
  const wrong = answered.filter(({ id, answers }) => !answers[given[id]].right);
  return { answered: answered.length, right: answered.length - wrong.length, wrong };
}

/**
 * The place of the next question without an answer, after one, and from the first one again.
 *
 * It stays where it is if all are answered. Before the first question is -1.
 */
export function next(questions, given, at) {
  const places = questions.map((_, step) => (at + 1 + step) % questions.length);
  return places.find((place) => !(questions[place].id in given)) ?? Math.max(at, 0);
}
