// The communication graph: learners on a circle, links as wide as their weights, colours by score.

import { h, svg } from "../dom.js";
import { number } from "../format.js";
import { figure } from "./figure.js";
import { shadeBar, shadeText } from "./shade.js";

const MOST_NUMBERS = 64;
const PULL = 0.4; // how far long links bend towards the centre

export function network(onPick) {
  let data = null; // {learners, scores, links, attackers}
  let points = [];
  let at = null;
  let radius = 10;
  let nearest = 0; // the distance of two neighbours
  const chart = figure(describe, draw, { move, leave, pick, key });
  const low = h("span");
  const high = h("span");
  const bar = h("div", { class: "scale" }, low, shadeBar(), high);
  chart.node.append(bar);

  function describe() {
    return `${data.learners} learners on a circle${data.links ? `, ${data.links.length} links between them` : ""}, coloured by return`;
  }

  function draw(width) {
    const side = Math.min(width, 520);
    const centre = side / 2;
    const turn = (2 * Math.PI) / data.learners;
    radius = Math.max(2, Math.min(side / 18, (side * 0.4 * Math.PI) / data.learners));
    const ring = centre - radius - 6;
    nearest = 2 * ring * Math.sin(turn / 2);
    points = Array.from({ length: data.learners }, (_, i) => [
      width / 2 + ring * Math.sin(i * turn),
      centre - ring * Math.cos(i * turn),
    ]);
    const drawn = svg("svg", { width, height: side, viewBox: `0 0 ${width} ${side}` }, arrowHead());
    const links = data.links ?? [];
    const widest = Math.max(...links.map(([, , weight]) => weight), 1e-12);
    const weights = new Map(links.map(([to, from, weight]) => [`${to} ${from}`, weight]));
    for (const [to, from, weight] of links) {
      const back = weights.get(`${from} ${to}`);
      if (back === weight && to > from) continue; // one line for both directions
      drawn.append(
        link(
          points[from],
          points[to],
          Math.max(0.5, (3 * weight) / widest),
          back === weight,
          [width / 2, centre],
          back !== undefined,
        ),
      );
    }
    const [least, most] = range();
    points.forEach(([x, y], learner) => drawn.append(disc(x, y, learner, least, most)));
    return drawn;
  }

  function arrowHead() {
    const tip = svg("path", { d: "M0 0L8 4L0 8Z", fill: "var(--soft)" });
    return svg(
      "defs",
      {},
      svg(
        "marker",
        {
          id: "arrow",
          viewBox: "0 0 8 8",
          refX: 8,
          refY: 4,
          markerWidth: 8,
          markerHeight: 8,
          markerUnits: "userSpaceOnUse",
          orient: "auto",
        },
        tip,
      ),
    );
  }

  // A line, or an arrow to the receiver; those longer than a neighbour's bend towards the centre, around the others.
  function link([x1, y1], [x2, y2], wide, both, [cx, cy], twoArrows) {
    const bend = twoArrows && !both ? 0.12 : 0;
    const pull = PULL * Math.max(0, 1 - nearest / Math.hypot(x2 - x1, y2 - y1));
    const mid = [
      (x1 + x2) / 2 + pull * (cx - (x1 + x2) / 2) + bend * (y2 - y1),
      (y1 + y2) / 2 + pull * (cy - (y1 + y2) / 2) - bend * (x2 - x1),
    ];
    const away = Math.hypot(x2 - mid[0], y2 - mid[1]) || 1;
    const cut = both ? 0 : radius + 2;
    const end = [x2 - ((x2 - mid[0]) / away) * cut, y2 - ((y2 - mid[1]) / away) * cut];
    const d = `M${x1} ${y1}Q${mid[0]} ${mid[1]} ${end[0]} ${end[1]}`;
    const many = data.links.length > 200 ? 0.35 : 0.75;
    return svg("path", {
      d,
      fill: "none",
      stroke: "var(--soft)",
      "stroke-width": wide,
      "stroke-opacity": many,
      "marker-end": both ? null : "url(#arrow)",
    });
  }

  function range() {
    const known = data.scores.filter((value) => value !== null);
    const [least, most] = known.length ? [Math.min(...known), Math.max(...known)] : [0, 0];
    low.textContent = number(least);
    high.textContent = number(most);
    bar.hidden = !known.length;
    return [least, most];
  }

  function disc(x, y, learner, least, most) {
    const value = data.scores[learner];
    const share = value === null || value === undefined ? null : (value - least) / (most - least || 1);
    const attacks = learner >= data.learners - (data.attackers ?? 0);
    const edge = attacks ? { stroke: "var(--c1)", "stroke-width": 3 } : { class: "halo", "stroke-width": 2 };
    const group = svg(
      "g",
      {},
      svg("circle", {
        cx: x,
        cy: y,
        r: radius,
        fill: share === null ? "var(--line)" : shadeText(share),
        ...edge,
      }),
    );
    if (data.learners <= MOST_NUMBERS) {
      const ink = share === null ? "var(--text)" : share > 0.55 ? "#000" : "#fff";
      const text = svg("text", { x, y: y + radius * 0.35, "text-anchor": "middle" }, String(learner));
      text.style.fontSize = `${radius}px`;
      text.style.fill = ink;
      group.append(text);
    }
    return group;
  }

  function move(px, py) {
    at = points.findIndex(([x, y]) => Math.hypot(x - px, y - py) <= radius + 3);
    tell();
  }

  function tell() {
    if (at === null || at < 0) return chart.showTip("");
    const attacks = at >= data.learners - (data.attackers ?? 0) ? "\nan attacker" : "";
    chart.showTip(`learner ${at}: return ${number(data.scores[at])}${attacks}`, ...points[at]);
  }

  function leave() {
    at = null;
    tell();
  }

  function pick() {
    if (at !== null && at >= 0) onPick(at);
  }

  function key(name) {
    if (name === "Enter") return pick() ?? true;
    if (name !== "ArrowLeft" && name !== "ArrowRight") return false;
    const step = name === "ArrowRight" ? 1 : -1;
    at = at === null || at < 0 ? 0 : (at + step + data.learners) % data.learners;
    tell();
    return true;
  }

  return { node: chart.node, update: (fresh) => ((data = fresh), chart.refresh()) };
}
