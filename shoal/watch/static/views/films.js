// The films of a run; moving pictures wait for a click where the system asks for less motion.

import { h } from "../dom.js";

export function filmsCard(id, fits = () => true) {
  const list = h("div", { class: "films" });
  const node = h("section", { class: "card", hidden: true }, h("h2", {}, "Films"), list);
  let shown = "";

  function film(name) {
    const source = `/films/${id}/${encodeURIComponent(name)}`;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const picture = name.toLowerCase().endsWith(".mp4")
      ? h("video", {
          src: source,
          controls: true,
          loop: true,
          muted: true,
          preload: "metadata",
          "aria-label": name,
        })
      : still
        ? h(
            "button",
            { type: "button", onclick: (event) => event.target.replaceWith(moving(source, name)) },
            "Play",
          )
        : moving(source, name);
    return h("figure", {}, picture, h("figcaption", {}, words(name)));
  }

  return {
    node,
    update(names) {
      const own = names.filter(fits);
      if (own.join("/") === shown) return;
      shown = own.join("/");
      node.hidden = !own.length;
      list.replaceChildren(...own.map(film));
    },
  };
}

const moving = (source, name) => h("img", { src: source, alt: `film ${words(name)}`, loading: "lazy" });

function words(name) {
  const found = name.match(/^(?:step_0*(\d+)_)?learner_(\w+)\.\w+$/);
  if (!found) return name;
  return `learner ${found[2]}${found[1] ? ` at step ${Number(found[1]).toLocaleString("en-US")}` : ""}`;
}
