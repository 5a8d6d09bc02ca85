// Access to the document. Text is set with textContent only, so that data from the server is never markup.

export const $ = (id) => document.getElementById(id);

/** Set an element's text, touching the document only when it differs. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/** Make an element: el("td", {class: "num", title: "…"}, "text" or nodes). */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

/** A definition list whose entries are made once and then only change their text. */
export class Facts {
  constructor(list) {
    this.list = list;
    this.entries = new Map();
  }

  /**
   * items: [[key, label, value, note?, help?], …]; an entry whose value is null is not shown. `help` is shown when the
   * pointer rests on the entry, and read to those who do not see it.
   */
  set(items) {
    for (const [key, label, value, note = "", help = ""] of items) {
      let entry = this.entries.get(key);
      if (!entry) {
        const term = el("dt", {}, label), main = el("dd"), small = el("dd", { class: "note" });
        const more = help === "" ? null : el("dd", { class: "sr" }, help);
        entry = { box: el("div", { "data-fact": key, title: help || null }, term, main, small, more), term, main, small };
        this.entries.set(key, entry);
        this.list.append(entry.box);
      }
      setHidden(entry.box, value === null);
      setText(entry.term, label);
      setText(entry.main, value ?? "");
      setText(entry.small, note);
      setHidden(entry.small, note === "");
    }
  }
}

/** A thin bar whose length is a share of 1. The number itself stands beside it. */
export function bar(share) {
  const fill = el("span", { class: "bar-fill" });
  fill.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { class: "meter", "aria-hidden": "true" }, fill);
}
