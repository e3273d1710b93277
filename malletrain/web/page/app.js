// Which page is shown, kept up to date.

import { LINK, ask, signIn, signOut, SignedOut } from "./connection.js";
import { el, fill } from "./dom.js";
import * as views from "./views.js";

const main = document.getElementById("main"), state = document.getElementById("state");
const LOOK_EVERY_S = 5;

const STATES = { live: "live", away: "the daemon does not answer; trying again", ended: "signed out" };
const pages = new Map();  // what a reader has chosen on each page
let me = null, view = null, figures = null, number = null, waiting = null, round = 0;

const ROUTES = [
  [/^#?\/?$/, views.machine], [/^#\/jobs$/, views.jobs], [/^#\/jobs\/(\d{1,18})$/, views.job],
  [/^#\/promise$/, views.promise],
];

function signedOut(error) {
  me = null;
  document.querySelector("nav").hidden = true;
  document.getElementById("user").replaceChildren();
  state.textContent = STATES.ended;
  fill(main, el("section", { class: "signed-out" },
    el("h1", { text: "Sign in" }),
    el("p", { text: "On a login node, run" }), el("code", { text: "malletrain web" }),
    el("p", { text: "and open the link that it prints here within a minute. It serves once." }),
    el("p", { class: "error", role: "alert", text: error.message })));
}

function draw() {
  const chosen = pages.get(view) ?? pages.set(view, {}).get(view);
  fill(main, ...view.draw(figures, chosen, (isHere) => { if (isHere) draw(); else look(); }, me));
}

// Ask for the page's figures, and draw them unless the reader has gone on to another page meanwhile.
async function look() {
  const mine = ++round, chosen = pages.get(view) ?? pages.set(view, {}).get(view);
  clearTimeout(waiting);
  waiting = setTimeout(lookIfShown, 1000 * LOOK_EVERY_S);
  try {
    if (figures === null && view.first) {
      const soon = await view.first(ask);
      if (mine !== round) return;
      figures = soon;
      draw();
      performance.mark("figures");
    }
    const found = await view.ask(ask, chosen, number);
    if (mine !== round) return;
    figures = found;
    draw();
    main.removeAttribute("aria-busy");
    state.textContent = STATES.live;
  } catch (error) {
    if (error instanceof SignedOut) { round += 1; clearTimeout(waiting); signedOut(error); return; }
    state.textContent = STATES.away;
    // Figures that are there stay there: the next look may succeed.
    if (mine === round && main.hasAttribute("aria-busy")) {
      fill(main, el("h1", { text: view.title }), el("p", { class: "error", role: "alert", text: error.message }));
      main.removeAttribute("aria-busy");
    }
  }
}

function lookIfShown() {
  if (me !== null && !document.hidden) look();
}

function go() {
  if (me === null) return;
  const [, found, match] = ROUTES.map(([form, page]) => [form, page, form.exec(location.hash)]).find(([, , hit]) => hit) ?? [null, views.machine, []];
  view = found;
  number = match[1] ?? null;
  figures = null;
  document.title = `${view.title}${number ? ` ${number}` : ""} – MalleTrain`;
  for (const link of document.querySelectorAll("nav a")) {
    const mine = link.hash === "#/" ? view === views.machine : location.hash.startsWith(link.hash);
    if (mine) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  main.setAttribute("aria-busy", "true");
  look();
}

async function begin() {
  try {
    await signIn();
    me = await ask("me");
  } catch (error) {
    signedOut(error);
    return;
  }
  document.getElementById("user").replaceChildren(me.role === "operator" ? `${me.user} (operator)` : me.user,
    el("button", { type: "button", text: "Sign out", onclick: async () => { await signOut(); signedOut(new Error("You are signed out.")); } }));
  addEventListener("hashchange", () => { go(); main.focus(); scrollTo(0, 0); });
  document.addEventListener("visibilitychange", lookIfShown);
  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  go();
}

// A new link in the address of a page that is open already.
addEventListener("hashchange", () => { if (LINK.test(location.hash)) location.reload(); });

begin();
