// Elements of a page. Texts are only ever set as text: names come from other users.

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "text") made.textContent = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// Put `made` in the place of what `host` has, with focus and caret on the element of the same data-key as before.
export function fill(host, ...made) {
  const before = host.contains(document.activeElement) ? document.activeElement : null, key = before?.dataset.key;
  const caret = before?.type === "search" ? [before.selectionStart, before.selectionEnd] : null;
  host.replaceChildren(...made.filter((child) => child !== null && child !== undefined));
  const after = key === undefined ? null : host.querySelector(`[data-key="${CSS.escape(key)}"]`);
  after?.focus({ preventScroll: true });
  if (after && caret) after.setSelectionRange(...caret);
}

// A table. `columns`: {name, cell(row) -> text or element, number: to the right}; narrow screens show a card a row.
export function table(caption, columns, rows, empty) {
  if (!rows.length) return el("p", { class: "empty", text: empty });
  const head = el("tr", {}, ...columns.map((column) => el("th", { scope: "col", class: column.number ? "number" : null, text: column.name })));
  const body = rows.map((row) => el("tr", {}, ...columns.map((column) => {
    const value = column.cell(row);
    return el("td", { "data-label": column.name, class: column.number ? "number" : null },
      value instanceof Node ? value : value === "" ? null : String(value));
  })));
  return el("div", { class: "scroll" },
    el("table", {}, el("caption", { class: "unseen", text: caption }), el("thead", {}, head), el("tbody", {}, ...body)));
}

export const tile = (name, value, note = "", kind = "") =>
  el("div", { class: `tile ${kind}` }, el("dt", { text: name }), el("dd", { text: value }), note ? el("span", { class: "note", text: note }) : null);

export const section = (title, ...children) =>
  el("section", {}, el("h2", { text: title }), ...children);
