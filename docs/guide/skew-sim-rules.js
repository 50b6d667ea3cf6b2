// Rules of "workers under skew": which task gets which rows of a join, and how long a stage takes. No drawing.
//
// Orders lie in files, as lists of [customer, rows]; a customer may be null. Each row of the customers' table
// is one customer. Spark sends the rows of a customer to the task that its hash says.

/** The forms of the query, as the page names them. */
export const FORMS = {
  plain: "join, plain",
  adaptive: "join, adaptive execution",
  as_of: "as_of_join, adaptive execution",
  nulls: "as_of_join, nulls isolated",
  salted: "as_of_join, salted",
  sums: "sums by customer",
};

/** A row has so many bytes, a hot key more than this share of the rows with a key, and so many salts. */
const [ROW, HOT, SALTS] = [50, 0.05, 16];
/** Adaptive execution in bytes, with the thresholds of the lab: Spark's own are 256 MB and 64 MB. */
const ADAPTIVE = { factor: 5, threshold: 32 * 1024, target: 16 * 1024 };

// --- Spark's hash: Murmur3 with seed 42, the last bytes of a string one by one ----------------------

const rotated = (value, by) => (value << by) | (value >>> (32 - by));

function mixed(hash, block) {
  const k = Math.imul(rotated(Math.imul(block, 0xcc9e2d51), 15), 0x1b873593);
  return (Math.imul(rotated(hash ^ k, 13), 5) + 0xe6546b64) | 0;
}

function finished(hash, length) {
  let h = hash ^ length;
  h = Math.imul(h ^ (h >>> 16), 0x85ebca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2ae35);
  return h ^ (h >>> 16);
}

const known = new Map([[null, 42]]);

/** Spark's hash of a string; of null, it is the seed. */
export function hashOfText(text, seed = 42) {
  if (seed !== 42) return text === null ? seed : hashed(text, seed);
  // The same customers are asked for again and again.
  if (!known.has(text)) known.set(text, hashed(text, seed));
  return known.get(text);
}

function hashed(text, seed) {
  const bytes = new TextEncoder().encode(text);
  const view = new DataView(bytes.buffer);
  const aligned = bytes.length - (bytes.length % 4);
  let hash = seed;
  for (let at = 0; at < aligned; at += 4) hash = mixed(hash, view.getInt32(at, true));
  for (let at = aligned; at < bytes.length; at += 1) hash = mixed(hash, view.getInt8(at));
  return finished(hash, bytes.length);
}

/** Spark's hash of a number of 32 bits. */
export const hashOfNumber = (number, seed = 42) => finished(mixed(seed, number), 4);

const taskOf = (hash, tasks) => ((hash % tasks) + tasks) % tasks;

// --- rows ---------------------------------------------------------------------------------------------

/**
 * Orders in files: a share of one customer, a share of none, the rest of all other customers in turn.
 *
 * @param hot in percent of the rows, as `nulls` is.
 */
export function orders({ rows, files, customers, hot, nulls }) {
  const share = Math.floor(rows / files);
  return Array.from({ length: files }, (_, file) => {
    const [of, none] = [hot, nulls].map((percent) => Math.round((share * percent) / 100));
    const found = new Map([["c-0", of], [null, none]]);
    for (let number = 0; number < share - of - none; number += 1) {
      const customer = `c-${(file * share + number) % customers}`;
      found.set(customer, (found.get(customer) ?? 0) + 1);
    }
    return [...found].filter(([, count]) => count);
  });
}

/** The customers with more than a twentieth of the rows that have a customer. */
export function hotOnes(files) {
  const counts = new Map();
  for (const [customer, count] of files.flat()) {
    if (customer !== null) counts.set(customer, (counts.get(customer) ?? 0) + count);
  }
  const whole = [...counts.values()].reduce((sum, count) => sum + count, 0);
  return new Set([...counts].filter(([, count]) => count > whole * HOT).map(([customer]) => customer));
}

// --- tasks --------------------------------------------------------------------------------------------

const none = () => ({ rows: 0, hot: 0, nulls: 0, customers: 0 });

function put(task, customer, rows, hot) {
  task.rows += rows;
  if (customer === null) task.nulls += rows;
  else if (hot.has(customer)) task.hot += rows;
}

function together(parts) {
  const whole = none();
  for (const part of parts) for (const name of Object.keys(whole)) whole[name] += part[name];
  return whole;
}

/**
 * The tasks of the stage that joins, or sums.
 *
 * @returns the `tasks`, each with its rows of orders, those of hot customers and of none among them, and
 *   the rows of customers that it reads; `scans` of the orders; and `copies`, the rows of customers that
 *   are read more than once.
 */
export function stage(form, files, customers, tasks) {
  const hot = hotOnes(files);
  if (form === "nulls") return isolated(files, customers, tasks, hot);
  if (form === "salted") return salted(files, customers, tasks, hot);
  const parts = shuffled(form === "sums" ? files.map((file) => file.map(([of]) => [of, 1])) : files, tasks, hot);
  const reads = form === "sums" ? Array(tasks).fill(0) : perTask(customers, tasks);
  if (form === "adaptive") return { ...split(parts, reads), scans: 1 };
  return { tasks: joined(parts, reads), scans: 1, copies: 0 };
}

/** By task and file, the rows: what each task that reads has for each task that joins. */
function shuffled(files, tasks, hot) {
  const parts = Array.from({ length: tasks }, () => files.map(none));
  files.forEach((file, at) => {
    for (const [customer, count] of file) put(parts[taskOf(hashOfText(customer), tasks)][at], customer, count, hot);
  });
  return parts;
}

function perTask(customers, tasks) {
  const found = Array(tasks).fill(0);
  for (const customer of customers) found[taskOf(hashOfText(customer), tasks)] += 1;
  return found;
}

const joined = (parts, reads) => parts.map((files, at) => ({ ...together(files), customers: reads[at] }));

/** Nulls match nothing: they stay in the tasks that read the files, and are added to what the others join. */
function isolated(files, customers, tasks, hot) {
  const known = files.map((file) => file.filter(([customer]) => customer !== null));
  const others = files.map((file) => {
    const task = none();
    file.filter(([customer]) => customer === null).forEach(([, count]) => put(task, null, count, hot));
    return task;
  });
  return { tasks: [...joined(shuffled(known, tasks, hot), perTask(customers, tasks)), ...others], scans: 2, copies: 0 };
}

/** Rows of hot customers and of none get numbers, and a hot customer is there once for each. */
function salted(files, customers, tasks, hot) {
  const found = Array.from({ length: tasks }, none);
  const at = (customer, salt) => found[taskOf(hashOfNumber(salt, hashOfText(customer)), tasks)];
  const totals = new Map();
  for (const [customer, count] of files.flat()) totals.set(customer, (totals.get(customer) ?? 0) + count);
  const spread = (customer) => customer === null || hot.has(customer);
  for (const [customer, count] of totals) {
    if (!spread(customer)) put(at(customer, 0), customer, count, hot);
    else {
      for (let salt = 0; salt < SALTS; salt += 1) {
        put(at(customer, salt), customer, Math.floor(count / SALTS) + (salt < count % SALTS ? 1 : 0), hot);
      }
    }
  }
  for (const customer of customers) {
    for (let salt = 0; salt < (hot.has(customer) ? SALTS : 1); salt += 1) at(customer, salt).customers += 1;
  }
  const copied = customers.filter((customer) => hot.has(customer)).length * (SALTS - 1);
  // Which customers are hot is counted first.
  return { tasks: found, scans: 2, copies: copied };
}

// --- adaptive execution -------------------------------------------------------------------------------

function median(sizes) {
  const sorted = [...sizes].sort((a, b) => a - b);
  const [low, high] = [sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]];
  return Math.max((low + high) / 2, 1);
}

/** A task that is far larger than the others is split by files. Each part reads its customers again. */
function split(parts, reads) {
  const { factor, threshold, target } = ADAPTIVE;
  const sizes = parts.map((files) => together(files).rows * ROW);
  const limit = Math.max(median(sizes) * factor, threshold);
  const usual = sizes.filter((size) => size <= limit);
  const wanted = Math.max(target, usual.length ? usual.reduce((sum, size) => sum + size, 0) / usual.length : 0);
  const found = { tasks: [], copies: 0 };
  parts.forEach((files, at) => {
    const groups = sizes[at] > limit ? packed(files, wanted) : [files];
    found.tasks.push(...groups.map((group) => ({ ...together(group), customers: reads[at] })));
    found.copies += reads[at] * (groups.length - 1);
  });
  return found;
}

/** Files in a row, in groups of about a size. Spark puts small groups together, as here. */
function packed(files, wanted) {
  const groups = [];
  let [group, size] = [[], 0];
  const close = () => {
    const last = groups.at(-1);
    const before = last ? together(last).rows * ROW : 0;
    const small = last && (size + before < wanted * 1.2 || Math.min(size, before) < wanted * 0.2);
    if (small) last.push(...group);
    else groups.push(group);
  };
  for (const file of files) {
    const next = file.rows * ROW;
    if (group.length && size + next > wanted) {
      close();
      [group, size] = [[], 0];
    }
    group.push(file);
    size += next;
  }
  close();
  return groups;
}

// --- workers ------------------------------------------------------------------------------------------

/** The time of a task: a unit for each row that it reads. */
export const timeOf = (task) => task.rows + task.customers;

/**
 * The tasks by worker: each goes to the worker that is free first, in their order.
 *
 * @returns the `workers`, each with its tasks and its time; the `time` of the stage, which is that of the
 *   longest; and the time that it `shares` evenly.
 */
export function scheduled(tasks, count) {
  const workers = Array.from({ length: count }, () => ({ tasks: [], time: 0 }));
  for (const task of tasks.filter(timeOf)) {
    const free = workers.reduce((least, worker) => (worker.time < least.time ? worker : least));
    free.tasks.push(task);
    free.time += timeOf(task);
  }
  const whole = workers.reduce((sum, worker) => sum + worker.time, 0);
  return { workers, time: Math.max(...workers.map((worker) => worker.time)), even: whole / count };
}
