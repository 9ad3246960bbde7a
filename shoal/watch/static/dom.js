// Elements from their names, attributes and children. Text is always text: nothing here reads HTML.

const SVG = "http://www.w3.org/2000/svg";

export const h = (tag, attributes = {}, ...children) =>
  filled(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, tag), attributes, children);

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

// Replaces an element's text only where it differs, so that nothing flickers or loses its place.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// The name of a run, which breaks between its parts where it does not fit into a line.
export const breakable = (name) =>
  name.split("__").flatMap((part, index) => (index ? ["__", h("wbr"), part] : [part]));

// The colours of curves, in their order; see colours.css.
export const colour = (index) => `var(--c${index % 7})`;
