// What the interactive pages share: elements, a spoken line, and what the browser keeps.

/** An element with attributes, event handlers (`onclick`) and children. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== undefined) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/** A line that screen readers speak when its text changes. */
export function spoken() {
  return element("p", { role: "status", "aria-live": "polite" });
}

/** What this browser keeps under a name; the fallback where it keeps nothing, or may not. */
export function kept(name, fallback) {
  try {
    return JSON.parse(localStorage.getItem(`backfill-assets ${name}`)) ?? fallback;
  } catch {
    return fallback;
  }
}

/** Keep something under a name. Without storage the page works, and forgets. */
export function keep(name, value) {
  try {
    localStorage.setItem(`backfill-assets ${name}`, JSON.stringify(value));
  } catch {
    // A private window, or storage that is switched off.
  }
}
