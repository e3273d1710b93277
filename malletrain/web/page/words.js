// Figures as people read them, and what a cell of the strip says. Pure: no page, no clock.

const UNITS = ["", "k", "M", "G", "T"];
const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
export const JOB_COLORS = 8;

// A count in three digits: 999, 1.23k, 45.6M.
export function count(number) {
  let left = number, unit = 0;
  while (Math.abs(left) >= 999.5 && unit < UNITS.length - 1) { left /= 1000; unit += 1; }
  if (unit === 0 && Number.isInteger(left)) return String(left);
  const digits = Math.abs(left) < 9.995 ? 2 : Math.abs(left) < 99.95 ? 1 : 0;
  return left.toFixed(digits) + UNITS[unit];
}

// A duration in its two largest units: 42 s, 3 min 05 s, 2 h 10 min, 5 d 3 h.
export function duration(seconds) {
  const left = Math.max(0, Math.round(seconds));
  if (left < 60) return `${left} s`;
  if (left < 3600) return `${Math.floor(left / 60)} min ${String(left % 60).padStart(2, "0")} s`;
  if (left < 86400) return `${Math.floor(left / 3600)} h ${String(Math.floor(left % 3600 / 60)).padStart(2, "0")} min`;
  return `${Math.floor(left / 86400)} d ${Math.floor(left % 86400 / 3600)} h`;
}

// Seconds with two digits behind the point.
export const pause = (seconds) => seconds === null ? "–" : `${seconds.toFixed(2)} s`;

export const rate = (perSecond) => perSecond > 0 ? `${count(perSecond)}/s` : "–";

export const hours = (nodeSeconds) => `${count(Math.round(nodeSeconds / 36) / 100)} h`;

export const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

// Date and time of day, or the time alone on the day of `now`; in the browser's time zone.
export function clock(at, now) {
  const time = new Date(at * 1000), today = new Date((now ?? 0) * 1000);
  const day = (date) => `${date.getFullYear()}-${String(date.getMonth() + 1).padStart(2, "0")}-${String(date.getDate()).padStart(2, "0")}`;
  const hour = `${String(time.getHours()).padStart(2, "0")}:${String(time.getMinutes()).padStart(2, "0")}:${String(time.getSeconds()).padStart(2, "0")}`;
  return now !== undefined && day(time) === day(today) ? hour : `${day(time)} ${hour}`;
}

// A job's letter and colour in the strip, the same as in the terminal.
export const letter = (job) => LETTERS[(job - 1) % LETTERS.length];
export const jobColor = (job) => (job - 1) % JOB_COLORS + 1;

export function sizes(job) {
  if (job.sizes.length) return job.sizes.join(", ");
  return job.min_nodes === job.max_nodes ? String(job.min_nodes) : `${job.min_nodes}–${job.max_nodes}`;
}

// Nodes that train, and those that warm up or leave beside them: "3 + 1".
export function nodes(job) {
  const more = job.nodes - job.members;
  return more > 0 ? `${job.members} + ${more}` : more < 0 ? `${job.members} − ${-more}` : String(job.members);
}

export function progress(job) {
  if (!job.total_samples) return count(job.samples);
  return `${count(job.samples)} of ${count(job.total_samples)} (${Math.floor(100 * job.samples / job.total_samples)} %)`;
}

// Of a cell [[key, nodes], ...] the key of most nodes beside the main queue's, and the share of the row that is not its.
export function dominant(cell, size) {
  let best = "main", most = 0, taken = 0;
  for (const [key, number] of cell) {
    taken += number;
    if (number > most && key !== "more") { most = number; best = key; }
  }
  return { key: best, share: size ? taken / size : 0 };
}

const KEYS = { main: "main queue", idle: "idle", planned: "planned for a main job", away: "reserved, off or down", stray: "a job that is no pilot", more: "of other jobs", hidden: "a pilot of another user" };

export const keyWords = (key, names) =>
  typeof key === "number" ? `job ${key}${names.get(key) ? ` ${names.get(key)}` : ""}` : KEYS[key];

// What a cell says in words.
export function cellWords(cell, size, names) {
  const main = size - cell.reduce((sum, [, number]) => sum + number, 0);
  const parts = cell.map(([key, number]) => size === 1 ? keyWords(key, names) : `${number} ${keyWords(key, names)}`);
  if (main) parts.push(size === 1 ? KEYS.main : `${main} ${KEYS.main}`);
  return parts.join(", ");
}

// The run that bin `at` of a row is in: its first bin, the bin behind it, its cell.
export function runAt(runs, at) {
  let begin = 0;
  for (const [bins, cell] of runs) {
    if (at < begin + bins) return { begin, end: begin + bins, cell };
    begin += bins;
  }
  return { begin, end: begin, cell: [] };
}

// Series of which each lies on those before it.
export function stacked(series) {
  const sums = series[0]?.map(() => 0) ?? [];
  return series.map((one) => one.map((value, at) => sums[at] += value));
}

// Round times of day between two, in the browser's time zone; as few as `most`.
export function timeMarks(begin, end, most) {
  const steps = [300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600, 43200, 86400];
  const step = steps.find((each) => (end - begin) / each <= most) ?? 86400;
  const shift = new Date(end * 1000).getTimezoneOffset() * 60;
  const marks = [];
  for (let at = Math.ceil((begin - shift) / step) * step + shift; at <= end; at += step) marks.push(at);
  return marks;
}
