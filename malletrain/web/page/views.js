// The pages, each made of the figures that it asks for.

import { el, section, table, tile } from "./dom.js";
import { plot, strip } from "./draw.js";
import { clock, count, duration, hours, jobColor, letter, nodes, pause, percent, progress, rate, sizes } from "./words.js";

const badge = (job) => el("span", { class: `badge j${jobColor(job)}`, "aria-hidden": "true", text: letter(job) });
const phase = (word) => el("span", { class: `phase ${/^[a-z]+$/.test(word) ? word : ""}`, text: word });
const link = (job, text) => el("a", { href: `#/jobs/${job}`, "data-key": `job-${job}-${text}`, text });
const jobLink = (job) => el("span", {}, badge(job.id), " ", link(job.id, String(job.id)));

function bar(job) {
  if (!job.total_samples) return progress(job);
  const share = Math.min(1, job.samples / job.total_samples);
  return el("span", {}, el("progress", { value: share, max: 1, "aria-label": `${Math.floor(100 * share)} % of the samples of job ${job.id}` }), ` ${Math.floor(100 * share)} %`);
}

function jobTable(caption, rows, now, empty) {
  return table(caption, [
    { name: "Job", cell: jobLink },
    { name: "Name", cell: (job) => link(job.id, job.name) },
    { name: "User", cell: (job) => job.user },
    { name: "Phase", cell: (job) => phase(job.phase) },
    { name: "Nodes", number: true, cell: nodes },
    { name: "Sizes", number: true, cell: sizes },
    { name: "Samples/s", number: true, cell: (job) => rate(job.rate) },
    { name: "Samples", number: true, cell: bar },
    { name: "Resizes", number: true, cell: (job) => job.resizes },
    { name: "Mean pause", number: true, cell: (job) => pause(job.mean_pause_s) },
    ...(rows[0]?.cells ?? []).map(([name, number], at) => ({ name, number, cell: (job) => job.cells[at][2] })),
    { name: "Why", cell: (job) => job.reason || (job.ended_at ? `ended ${clock(job.ended_at, now)}` : "") },
  ], rows, empty);
}

const buttons = (name, choices, chosen, choose) => el("div", { role: "group", "aria-label": name, class: "right" },
  ...choices.map(([value, text]) => el("button", {
    type: "button", "data-key": `${name}-${value}`, "aria-pressed": String(value === chosen), text, onclick: () => choose(value),
  })));

// -- machine ----------------------------------------------------------------------------------------------------

export const machine = {
  title: "Machine",
  // What is there soon, while the daemon makes the strip of a large machine.
  first: async (ask) => ({ summary: await ask("summary"), figures: { rows: [], pool: {}, isComing: true } }),
  async ask(ask, state) {
    state.hours ??= "6";
    const [summary, figures] = await Promise.all([ask("summary"), ask(`machine?hours=${state.hours}`)]);
    return { summary, figures };
  },
  draw({ summary, figures }, state, again, me) {
    const { pool, jobs } = summary, total = pool.idle + pool.planned + pool.harvested + pool.main + pool.down + pool.reserved + pool.stray + pool.powered_down;
    const share = (number) => total ? percent(number / total) : "";
    const names = new Map(jobs.map((job) => [job.id, job.name]));
    const shown = [...new Set(figures.rows.flatMap((row) => row[3].flatMap(([, cell]) => cell.map(([key]) => key))))];
    const drawn = shown.filter((key) => typeof key === "number").sort((a, b) => a - b);
    const stale = summary.taken_at === null ? "Slurm has not been seen yet." : summary.at - summary.taken_at > 60 ? `Slurm was last seen ${duration(summary.at - summary.taken_at)} ago.` : "";
    const seldom = pool.reserved + pool.powered_down + pool.down;
    const rowsOfMany = figures.rows.some((row) => row[2] > 1);
    return [
      el("h1", { text: `${count(total)} nodes` }),
      ...[stale, ...summary.notices].filter(Boolean).map((text) => el("p", { class: "notice", text })),
      el("dl", { class: "tiles" },
        tile("Main queue", count(pool.main), share(pool.main), "main"),
        tile("Pilots", count(pool.harvested), share(pool.harvested), "pilots"),
        tile("Idle", count(pool.idle), share(pool.idle), "idle"),
        tile("Planned", count(pool.planned), "for a main job", "planned"),
        tile("Reserved, off or down", count(seldom), `${pool.reserved}, ${pool.powered_down} and ${pool.down}`, "away"),
        pool.stray ? tile("Stray", count(pool.stray), "jobs that are no pilots", "stray") : null,
        tile("Jobs", String(jobs.length), `${jobs.filter((job) => job.members).length} train`)),
      el("section", {},
        el("div", { class: "head" }, el("h2", { text: "Who had which node" }),
          buttons("Time shown", [["1", "1 hour"], ["6", "6 hours"], ["24", "24 hours"]], state.hours, (value) => { state.hours = value; again(); })),
        figures.rows.length ? strip(figures, names, (job) => { location.hash = `#/jobs/${job}`; })
          : el("p", { class: "empty", text: figures.isComing ? "Drawing…" : me.nodes ? "No nodes have been seen yet." : "Nodes are private on this machine (Slurm's PrivateData)." }),
        el("ul", { class: "legend" },
          ...drawn.slice(0, 16).map((job) => el("li", {}, badge(job), link(job, names.get(job) ? `${job} ${names.get(job)}` : `job ${job}`))),
          drawn.length > 16 ? el("li", { text: `and ${drawn.length - 16} more jobs` }) : null,
          el("li", {}, el("span", { class: "swatch main" }), "main queue"),
          el("li", {}, el("span", { class: "swatch idle" }), "idle"),
          shown.includes("planned") ? el("li", {}, el("span", { class: "swatch planned" }), "planned for a main job (now)") : null,
          shown.includes("away") ? el("li", {}, el("span", { class: "swatch away" }), "reserved, off or down") : null,
          shown.includes("stray") ? el("li", {}, el("span", { class: "swatch stray" }), "a job that is no pilot, in the harvest partition (now)") : null,
          shown.includes("hidden") ? el("li", {}, el("span", { class: "swatch hidden" }), "pilot of another user") : null),
        rowsOfMany ? el("p", { class: "note", text: "A row is several nodes. It has the colour of what most of those without a main job were; the paler, the more of them the main queue had." }) : null),
      figures.pool.at ? section("Nodes without a main job", poolPlot(figures.pool)) : null,
      el("section", {}, el("div", { class: "head" }, el("h2", { text: "Jobs now" })),
        jobTable("Jobs that are not over", jobs, summary.at, "No malleable jobs. Submit one with mtbatch.")),
    ];
  },
};

function poolPlot(pool) {
  const names = [["harvested", "pilots", "j1"], ["planned", "planned for a main job", "planned"], ["idle", "idle", "idle-mark"]];
  let below = pool.at.map(() => 0);
  const series = names.map(([name, words, color], at) => {
    below = below.map((sum, index) => sum + pool[name][index]);
    return { name: words, values: pool[name], drawn: below, color, fill: [55, 30, 12][at], step: true, dash: [undefined, [6, 3], [2, 2]][at] };
  });
  // The highest is drawn first, so that those below it stay visible.
  series.reverse();
  const last = names.map(([name, words]) => `${pool[name].at(-1)} ${words}`).join(", ");
  return plot({ title: "Nodes without a main job over time", x: pool.at, series, height: 190, whole: true, summary: `Now ${last}.` });
}

// -- jobs -------------------------------------------------------------------------------------------------------

export const jobs = {
  title: "Jobs",
  ask: (ask) => ask("jobs"),
  draw(figures, state, again, me) {
    state.show ??= "open";
    const wanted = (job) => (state.show === "all" || job.ended_at === null) && (!state.mine || job.user === me.user)
      && (!state.text || `${job.id} ${job.name} ${job.user} ${job.account}`.toLowerCase().includes(state.text.toLowerCase()));
    const rows = figures.jobs.filter(wanted);
    const find = el("input", { type: "search", "data-key": "find", "aria-label": "Find a job by number, name, user or account", placeholder: "Find…", value: state.text ?? "" });
    find.addEventListener("input", () => { state.text = find.value; again(true); });
    const mine = el("input", { type: "checkbox", "data-key": "mine", id: "mine" });
    mine.checked = Boolean(state.mine);
    mine.addEventListener("change", () => { state.mine = mine.checked; again(true); });
    return [
      el("div", { class: "head" }, el("h1", { text: "Jobs" }),
        el("div", { class: "right" }, find, el("label", { for: "mine" }, mine, " mine alone")),
        buttons("Jobs shown", [["open", "Not over"], ["all", "All"]], state.show, (value) => { state.show = value; again(true); })),
      el("section", {}, jobTable("Jobs, the newest first", rows.slice(0, 500), Date.now() / 1000, "No such jobs."),
        rows.length > 500 ? el("p", { class: "note", text: `500 of ${rows.length} are shown: find others by name.` }) : null),
    ];
  },
};

export const job = {
  title: "Job",
  ask: (ask, state, number) => ask(`jobs/${number}`),
  draw(figures) {
    const { job: row, profile } = figures, now = Date.now() / 1000;
    const facts = [
      ["Owner", row.account ? `${row.user}, account ${row.account}` : row.user],
      ["Nodes", `${nodes(row)} of ${sizes(row)}`],
      ["World", `generation ${row.generation}, ${row.held_tasks} tasks held`],
      ["Throughput", rate(row.rate)],
      ["Trained", progress(row)],
      ["Node-hours", hours(row.node_seconds)],
      ["Resizes", row.resizes ? `${row.resizes}, pause ${pause(row.mean_pause_s)} on average, ${pause(row.max_pause_s)} at most` : "none yet"],
      ["Losses", `${row.preemptions} preemptions, ${row.lost_workers} workers lost`],
      row.trusted ? ["Script check", "none: --trust"] : null,
      row.check_verdict && !row.trusted ? ["Script check", [row.check_verdict, row.check_text].filter(Boolean).join(": ")] : null,
      ["Submitted", clock(row.submitted_at, now)],
      row.ended_at === null ? null : ["Ended", clock(row.ended_at, now)],
      ...Object.entries({ ...row.metrics, ...row.result }).slice(0, 12).map(([name, value]) => [name, typeof value === "number" ? Number(value.toPrecision(5)) : JSON.stringify(value)]),
    ].filter(Boolean);
    return [
      el("div", { class: "head" }, el("h1", {}, badge(row.id), ` Job ${row.id} `, el("span", { text: row.name })), phase(row.phase)),
      row.reason ? el("p", { class: "notice", text: row.reason }) : null,
      el("section", {}, el("dl", { class: "facts" }, ...facts.map(([name, value]) => el("div", {}, el("dt", { text: name }), el("dd", { text: String(value) }))))),
      el("div", { class: "pair" },
        section("Nodes that train together", plot({
          title: `Nodes of job ${row.id} over time`, x: figures.sizes.map(([at]) => at), whole: true, summary: `Now ${row.members}, ${row.resizes} resizes so far.`,
          series: [
            { name: "held by pilots", values: figures.sizes.map(([, held]) => held), color: "dim", step: true, dash: [4, 3] },
            { name: "train together", values: figures.sizes.map(([, , trains]) => trains), color: "j1", fill: 25, step: true },
          ],
        })),
        section("Samples per second", figures.rates.length ? plot({
          title: `Samples per second of job ${row.id} over time`, x: figures.rates.map(([at]) => at), summary: `Last ${rate(figures.rates.at(-1)[1])}.`,
          series: [{ name: "samples/s", values: figures.rates.map(([, value]) => value), color: "j3", points: figures.rates.length < 40 }],
        }) : el("p", { class: "empty", text: "No window of training has been reported yet." })),
        section("How it scales", curve(profile)),
        section("Pauses of its resizes", figures.resizes.length ? pauses(figures.resizes) : el("p", { class: "empty", text: "It has not been resized yet." }))),
      section("Why it has what it has", figures.explain.length ? el("pre", { text: figures.explain.join("\n") }) : el("p", { class: "empty", text: "It is over." })),
      section("Pilots", table("Pilots", [
        { name: "Pilot", cell: (pilot) => pilot.id },
        { name: "Node", cell: (pilot) => pilot.node || "–" },
        { name: "Phase", cell: (pilot) => pilot.phase },
        { name: "Runs for", number: true, cell: (pilot) => pilot.started_at ? duration(now - pilot.started_at) : "–" },
        { name: "Time left", number: true, cell: (pilot) => pilot.ends_at ? duration(pilot.ends_at - now) : "–" },
        { name: "Why", cell: (pilot) => pilot.reason },
      ], row.pilots, "It holds no node now.")),
      section("What happened last", table("Events, the newest first", [
        { name: "Time", cell: ([at]) => clock(at, now) },
        { name: "What", cell: ([, kind]) => kind.replaceAll("_", " ") },
        { name: "Where", cell: ([, , pilot, node]) => [pilot, node].filter(Boolean).join(" on ") },
        { name: "Why", cell: ([, , , , reason]) => reason },
      ], figures.events.toReversed(), "Nothing yet.")),
    ];
  },
};

function curve(profile) {
  if (!profile?.sizes.length) return el("p", { class: "empty", text: "Nothing has been measured yet." });
  const { sizes: known } = profile, measured = known.filter((size) => size.windows).length;
  return el("div", {}, plot({
    title: "Samples per second by number of nodes", x: known.map((size) => size.nodes), isTime: false, xName: "nodes", bands: [[2, 3]],
    summary: `${measured} of ${known.length} sizes measured, the others estimated.`,
    series: [
      { name: "estimate", values: known.map((size) => size.rate), color: "j1" },
      { name: "at most", values: known.map((size) => size.high), color: "j1", hidden: true },
      { name: "at least", values: known.map((size) => size.low), color: "j1", hidden: true },
      { name: "measured", values: known.map((size) => size.windows ? size.rate : null), color: "j2", points: true, onlyPoints: true },
    ],
  }), profile.next ? el("p", { class: "note", text: profile.next }) : null);
}

function pauses(resizes) {
  return plot({
    title: "Seconds that each resize took", x: resizes.map(([at]) => at), unit: " s", words: (value) => value.toFixed(2),
    summary: `${resizes.length} resizes.`,
    series: [{ name: "pause", values: resizes.map((each) => each[3]), color: "j2", points: true, onlyPoints: true }],
  });
}

// -- the promise to the main queue ------------------------------------------------------------------------------

export const promise = {
  title: "Main queue",
  ask: (ask, state) => ask(`promise?days=${state.days ??= "30"}`),
  draw(figures, state, again) {
    const kept = figures.kept, stated = Object.entries(figures.stated).filter(([key]) => key !== "chance");
    const later = (value) => value === undefined ? "–" : value < 60 ? pause(value) : duration(value);
    return [
      el("div", { class: "head" }, el("h1", { text: "The promise to the main queue" }),
        buttons("Days shown", [["1", "1 day"], ["7", "7 days"], ["30", "30 days"]], state.days, (value) => { state.days = value; again(); })),
      el("p", { class: "note", text: stated.length ? `Promised: ${stated.map(([key, value]) => `${key} ${value}`).join(", ")}.` : "Nothing is promised: [promise] is not set." }),
      el("dl", { class: "tiles" },
        tile("Main jobs", count(kept?.main_jobs ?? 0)),
        tile("Met pilots", count(kept?.met ?? 0)),
        tile("Started later for it", count(kept?.delayed ?? 0)),
        tile("Later, mean", later(kept?.delay_mean_s), "of all main jobs"),
        tile("Later at most", later(kept?.longest_s))),
      kept?.broken ? el("p", { class: "note", text: `Not kept: ${kept.broken}` }) : null,
      section("Main jobs that met pilots, the newest first", table("Main jobs", [
        { name: "Main job", cell: (each) => each.main_job },
        { name: "User", cell: (each) => each.user },
        { name: "Could start", cell: (each) => clock(each.could_at) },
        { name: "Started", cell: (each) => clock(each.started_at) },
        { name: "Later", number: true, cell: (each) => later(each.delay_s) },
        { name: "Nodes of pilots", number: true, cell: (each) => each.nodes.length },
        { name: "Why", cell: (each) => each.reason },
      ], figures.main_jobs.toReversed().slice(0, 100), "None in this time, or none that you may see.")),
    ];
  },
};
