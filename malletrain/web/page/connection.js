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
