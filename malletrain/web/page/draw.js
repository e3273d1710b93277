// Pictures: the strip of nodes over time, and plots by uPlot. Each says in words what it shows.

import { el, fill } from "./dom.js";
import { cellWords, clock, count, dominant, jobColor, letter, runAt, timeMarks } from "./words.js";

const AXIS = 22, GAP = 1;

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const dark = matchMedia("(prefers-color-scheme: dark)");

// Call `draw` now, when the host's width changes, and when light and dark change places.
function drawn(host, draw) {
  let width = 0;
  const again = () => { if (host.isConnected && host.clientWidth) draw(host.clientWidth); };
  new ResizeObserver(() => { if (host.clientWidth !== width) { width = host.clientWidth; again(); } }).observe(host);
  dark.addEventListener("change", function changed() { host.isConnected ? again() : dark.removeEventListener("change", changed); });
}

function pattern(context, kind) {
  const tile = document.createElement("canvas"), side = 6;
  tile.width = tile.height = side;
  const pen = tile.getContext("2d");
  pen.fillStyle = ink("idle");
  pen.fillRect(0, 0, side, side);
  if (kind === "idle") {
    pen.fillStyle = ink("idle-mark");
    pen.fillRect(2, 2, 1.6, 1.6);
  } else if (kind === "planned") {
    pen.fillStyle = ink("planned");
    pen.fillRect(0, 0, side, 2);
  } else if (kind === "away") {
    pen.strokeStyle = ink("away");
    pen.lineWidth = 1.6;
    pen.beginPath();
    for (const at of [-side, 0, side]) { pen.moveTo(at, side); pen.lineTo(at + side, 0); }
    pen.stroke();
  } else {
    pen.fillStyle = ink("dim");
    pen.fillRect(0, 0, 3, side);
  }
  return context.createPattern(tile, "repeat");
}

const rowHeight = (rows) => rows <= 16 ? 24 : rows <= 32 ? 17 : rows <= 64 ? 11 : 6;

// The strip. `names`: of jobs; `open`: called with the job that a reader chooses.
export function strip(figures, names, open) {
  const { rows, bins, begin, end } = figures;
  const each = rowHeight(rows.length), height = rows.length * each + AXIS;
  const canvas = el("canvas", {
    role: "img", tabindex: "0", "data-key": "strip",
    "aria-label": `Strip of ${rows.reduce((sum, row) => sum + row[2], 0)} nodes from ${clock(begin)} to ${clock(end)}. Arrow keys read it, Enter opens a job.`,
  });
  const tip = el("div", { class: "tip", hidden: true }), live = el("p", { class: "unseen", role: "status" });
  const host = el("div", { class: "strip" }, canvas, tip, live);
  const label = (row) => row[2] === 1 ? row[0] : `${row[0]} – ${row[1]}`;
  const time = (bin) => begin + (end - begin) * bin / bins;
  let left = 0, wide = 0, place = null;

  drawn(host, (width) => {
    const scale = devicePixelRatio || 1, context = canvas.getContext("2d");
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    context.scale(scale, scale);
    context.font = `${Math.min(12, Math.max(10, each - 6))}px system-ui, sans-serif`;
    const labels = rows.map(label), skip = Math.ceil(14 / each);
    left = Math.min(width / 3, 8 + Math.max(0, ...labels.map((text) => context.measureText(text).width)));
    wide = width - left;
    const fills = { idle: pattern(context, "idle"), planned: pattern(context, "planned"), away: pattern(context, "away"), hidden: pattern(context, "hidden"), main: ink("main"), stray: ink("stray") };
    const onJob = ink("on-job");
    context.textBaseline = "middle";
    rows.forEach(([, , size, runs], at) => {
      const top = at * each;
      if (at % skip === 0) {
        context.fillStyle = ink("dim");
        context.fillText(labels[at], 0, top + each / 2, left - 6);
      }
      let bin = 0;
      for (const [length, cell] of runs) {
        const x = left + wide * bin / bins, span = wide * length / bins, { key, share } = dominant(cell, size);
        const isJob = typeof key === "number";
        context.globalAlpha = 1;
        if (size > 1) {  // a row of many nodes: the rest of them are the main queue's
          context.fillStyle = fills.main;
          context.fillRect(x, top, span + .4, each - GAP);
          context.globalAlpha = key === "main" ? 1 : .25 + .75 * share;
        }
        context.fillStyle = isJob ? ink(`j${jobColor(key)}`) : fills[key];
        context.fillRect(x, top, span + .4, each - GAP);
        context.globalAlpha = 1;
        if (isJob && each >= 11 && span > 14) {
          context.fillStyle = onJob;
          const text = span > 52 && each >= 16 ? `${letter(key)} · ${key}` : letter(key);
          context.fillText(text, x + 4, top + (each - GAP) / 2, span - 6);
        }
        bin += length;
      }
    });
    context.fillStyle = ink("dim");
    context.textAlign = "center";
    for (const mark of timeMarks(begin, end, wide / 70)) {
      const at = left + wide * (mark - begin) / (end - begin);
      context.fillRect(at, rows.length * each, 1, 4);
      if (at > left + 16 && at < width - 40) context.fillText(clock(mark).slice(-8, -3), at, rows.length * each + 14);
    }
    context.textAlign = "right";
    context.fillText("now", width, rows.length * each + 14);
    context.textAlign = "left";
    if (place) show(place.row, place.bin);
  });

  function show(row, bin) {
    const [, , size, runs] = rows[row], run = runAt(runs, bin);
    const words = `${label(rows[row])}, ${clock(time(run.begin), end).slice(-8, -3)}–${clock(time(run.end), end).slice(-8, -3)}: ${cellWords(run.cell, size, names)}`;
    place = { row, bin, run, job: run.cell.find(([key]) => typeof key === "number")?.[0] };
    tip.textContent = words;
    tip.hidden = false;
    const x = left + wide * (run.begin + run.end) / 2 / bins;
    tip.style.left = `${Math.max(0, Math.min(x - tip.offsetWidth / 2, left + wide - tip.offsetWidth))}px`;
    tip.style.top = `${row > 2 ? row * each - tip.offsetHeight - 4 : (row + 1) * each + 4}px`;
    return words;
  }
  const hide = () => { tip.hidden = true; place = null; };
  canvas.addEventListener("pointermove", (event) => {
    const x = event.offsetX - left, row = Math.floor(event.offsetY / each);
    if (x < 0 || row >= rows.length || x >= wide) { hide(); return; }
    show(row, Math.floor(x / wide * bins));
    canvas.style.cursor = place.job === undefined ? "" : "pointer";
  });
  canvas.addEventListener("pointerleave", hide);
  canvas.addEventListener("blur", hide);
  canvas.addEventListener("click", () => { if (place?.job !== undefined) open(place.job); });
  canvas.addEventListener("keydown", (event) => {
    if (!rows.length) return;
    const now = place ?? { row: 0, bin: bins - 1, run: runAt(rows[0][3], bins - 1) };
    const moves = {
      ArrowUp: [now.row - 1, now.bin], ArrowDown: [now.row + 1, now.bin],
      ArrowLeft: [now.row, now.run.begin - 1], ArrowRight: [now.row, now.run.end],
      Home: [now.row, 0], End: [now.row, bins - 1],
    };
    if (event.key === "Enter" && place?.job !== undefined) { open(place.job); return; }
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [row, bin] = place ? moves[event.key] : [now.row, now.bin];
    live.textContent = show(Math.max(0, Math.min(rows.length - 1, row)), Math.max(0, Math.min(bins - 1, bin)));
  });
  return host;
}

// A plot. `series`: {name, values, color, fill, step, points, dash, hidden, words(value)}; `bands`: [upper, lower].
export function plot({ title, x, series, bands = [], isTime = true, xName = "time", unit = "", words = count, whole = false, height = 210, summary }) {
  const host = el("div", { role: "img", "aria-label": `${title}. ${summary ?? ""}` });
  const paths = { step: uPlot.paths.stepped({ align: 1 }), line: uPlot.paths.linear() };
  let made = null;
  drawn(host, (width) => {
    made?.destroy();
    const axis = { stroke: ink("dim"), grid: { stroke: ink("line"), width: 1 }, ticks: { stroke: ink("line"), width: 1 }, font: "12px system-ui, sans-serif" };
    made = new uPlot({
      width, height,
      legend: { live: true },
      cursor: { drag: { x: true, y: false } },
      scales: { x: { time: isTime }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high || 1) * 1.08] } },
      axes: [
        { ...axis, values: isTime ? (_, times) => times.map((at) => clock(at, x.at(-1)).slice(0, -3)) : (_, at) => at.map((n) => Number.isInteger(n) ? String(n) : ""), space: isTime ? 90 : 40 },
        { ...axis, values: (_, at) => at.map((value) => whole && !Number.isInteger(value) ? "" : words(value)), size: 56 },
      ],
      series: [
        { label: xName, value: (_, at) => at === null ? "–" : isTime ? clock(at) : String(at) },
        ...series.map((one) => ({
          label: one.name, stroke: ink(one.color), width: one.hidden ? 0 : 1.6, dash: one.dash,
          fill: one.fill ? `color-mix(in srgb, ${ink(one.color)} ${one.fill}%, transparent)` : undefined,
          paths: one.onlyPoints ? () => null : one.step ? paths.step : paths.line,
          points: { show: one.points ?? false, size: 6, fill: ink(one.color) },
          value: (_, value) => value === null || value === undefined ? "–" : `${(one.words ?? words)(value)}${unit}`,
        })),
      ],
      bands: bands.map((pair) => ({ series: pair, fill: `color-mix(in srgb, ${ink("j1")} 18%, transparent)` })),
    }, [x, ...series.map((one) => one.drawn ?? one.values)], host);
    // The picture's name says what it shows; its figures are in the table below.
    host.querySelector(".u-legend")?.setAttribute("aria-hidden", "true");
  });
  const rows = () => x.map((at, index) => el("tr", {},
    el("th", { scope: "row", text: isTime ? clock(at) : String(at) }),
    ...series.map((one) => el("td", { "data-label": one.name, class: "number", text: one.values[index] === null ? "–" : words(one.values[index]) }))));
  const details = el("details", {}, el("summary", { text: "As a table" }), el("div", { class: "scroll" }));
  details.addEventListener("toggle", () => {
    if (!details.open) return;
    fill(details.lastChild, el("table", {}, el("caption", { class: "unseen", text: title }),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", text: xName }), ...series.map((one) => el("th", { scope: "col", class: "number", text: one.name })))),
      el("tbody", {}, ...rows())));
  });
  return el("figure", {}, host, details);
}
