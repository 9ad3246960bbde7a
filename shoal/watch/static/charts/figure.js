// A figure that is drawn anew when its data or its width change, with a tip and a cursor for keys.

import { h } from "../dom.js";

const observer = new ResizeObserver((entries) => entries.forEach(({ target }) => target.redraw?.()));

// draw(width) returns the picture; reactions: move(x, y), leave(), pick(), key(name).
export function figure(label, draw, reactions = {}) {
  const tip = h("div", { class: "tip", hidden: true, role: "status" });
  const picture = h("div", { class: "picture" });
  const caption = h("figcaption");
  const node = h("figure", { class: "chart" }, picture, tip, caption);
  let drawn = 0; // the width of the last drawing
  let ready = false; // whether there is anything to draw
  node.redraw = () => {
    if (ready && Math.floor(node.clientWidth) !== drawn) refresh();
  };
  function refresh() {
    ready = true;
    drawn = Math.floor(node.clientWidth);
    if (!drawn) return;
    if (reactions.key) picture.setAttribute("aria-label", label());
    const inside = draw(drawn);
    inside.setAttribute("role", "img");
    inside.setAttribute("aria-label", label());
    picture.replaceChildren(inside);
  }
  if (reactions.move) {
    picture.addEventListener("pointermove", (event) => {
      const box = picture.getBoundingClientRect();
      reactions.move(event.clientX - box.left, event.clientY - box.top);
    });
    picture.addEventListener("pointerleave", () => reactions.leave());
    picture.addEventListener("click", () => reactions.pick?.());
  }
  if (reactions.key) {
    picture.tabIndex = 0;
    picture.setAttribute("role", "group");
    picture.setAttribute("aria-roledescription", "chart, arrow keys read it");
    picture.addEventListener("keydown", (event) => {
      if (reactions.key(event.key)) event.preventDefault();
    });
    picture.addEventListener("blur", () => reactions.leave());
  }
  observer.observe(node);
  return {
    node,
    refresh,
    say: (text) => (caption.textContent = text),
    showTip(text, x, y) {
      tip.hidden = !text;
      if (!text) return;
      if (tip.textContent !== text) tip.textContent = text;
      const left = Math.min(x + 14, node.clientWidth - tip.offsetWidth - 2);
      tip.style.transform = `translate(${Math.max(0, left)}px, ${Math.max(0, y - tip.offsetHeight - 8)}px)`;
    },
  };
}
