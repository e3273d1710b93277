// What the page asks of the daemon. The session's key lies in this host and port's storage, its cookie out of reach.

const KEY = "malletrain-key";
export const LINK = /^#([A-Za-z0-9_-]{40,100})$/;

export class SignedOut extends Error {}

const headers = () => {
  const key = localStorage.getItem(KEY);
  return key ? { "X-MalleTrain-Key": key } : {};
};

// Open a session if the address has a link in it, which is taken out of the address and the history at once.
export async function signIn() {
  const link = LINK.exec(location.hash);
  if (!link) return;
  history.replaceState(null, "", location.pathname + location.search);
  const answer = await fetch("session", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ link: link[1] }),
  });
  const told = await answer.json();
  if (!answer.ok) throw new SignedOut(told.error);
  localStorage.setItem(KEY, told.key);
}

export async function signOut() {
  await fetch("session", { method: "DELETE", headers: headers() });
  localStorage.removeItem(KEY);
}

export async function ask(path) {
  const answer = await fetch(`data/${path}`, { headers: headers(), cache: "no-store" });
  const told = await answer.json();
  if (answer.status === 401) throw new SignedOut(told.error);
  if (!answer.ok) throw new Error(told.error);
  return told;
}

// Call `changed` when the daemon says that something has; `state` with "live", "away" or "ended". Goes on for ever.
// A hidden page has no stream: a browser opens six connections to a host at most, for all of its tabs.
export async function follow(changed, state) {
  let stop = new AbortController(), wake = () => {};
  addEventListener("pagehide", () => stop.abort());
  document.addEventListener("visibilitychange", () => { if (document.hidden) stop.abort(); else wake(); });
  for (let delay = 1; ; delay = Math.min(60, 2 * delay)) {
    if (document.hidden) await new Promise((shown) => { wake = shown; });
    stop = new AbortController();
    try {
      // An EventSource cannot send the key: the same messages, read from a plain answer.
      const answer = await fetch("data/stream", { headers: headers(), cache: "no-store", signal: stop.signal });
      if (answer.status === 401) { state("ended"); return; }
      if (answer.ok) {
        state("live");
        delay = 1;
        if (await isOver(answer.body, changed)) { state("ended"); return; }
      }
    } catch { /* the daemon is away, or the page is hidden: tried again */ }
    if (!stop.signal.aborted) state("away");
    await new Promise((done) => setTimeout(done, 1000 * delay));
    changed();
  }
}

// Read server-sent events until the answer ends; whether they say that the session is over.
async function isOver(body, changed) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read();
    if (done) return false;
    const messages = (rest + value).split("\n\n");
    rest = messages.pop();
    for (const message of messages) {
      if (message.startsWith("event: changed")) changed();
      if (message.startsWith("event: ended")) return true;
    }
  }
}
