// Elements without markup in strings: whatever comes from a message is a text node, never parsed.

/** Return an element; `props` are attributes, `on…` listeners, and `class`; children are nodes or text. */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((each) => each !== null && each !== undefined));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Set an element's text only when it differs, so that selections and screen readers are left alone. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Keep one row per key, in this order; rows stay the same elements, so that the focus stays where it is. */
export function keepRows(body, rows, items, keyOf, make, update) {
  const wanted = new Set(items.map(keyOf));
  for (const [key, row] of rows) {
    if (!wanted.has(key)) {
      row.root.remove();
      rows.delete(key);
    }
  }
  const focused = document.activeElement;
  let place = body.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let row = rows.get(key);
    if (!row) rows.set(key, (row = make(item)));
    if (row.root === place) place = place.nextElementSibling;
    else body.insertBefore(row.root, place);
    update(row, item);
  }
  // A row that changed its place has lost the focus on the way.
  if (focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
}
