// The lineage of a population: who became a copy of whom, and hyperparameters along the same lines.

import { svg } from "../dom.js";
import { number, whole } from "../format.js";
import { axes, extent, logTicks, scale, ticks } from "./axes.js";
import { figure } from "./figure.js";

const BEND = 0.4; // the part of the time between two selections in which a line moves to its place
const MANY = 32;

// Every learner's height at each event as a path that begins at its parent's; the winning line on top.
function branches(data, heights, x, y, bend) {
  const ends = [...data.steps.slice(1), data.end];
  const learners = data.parent[0].length;
  const groups = { ended: "", remains: "", line: "" };
  data.steps.forEach((step, event) => {
    for (let learner = 0; learner < learners; learner++) {
      const parent = data.parent[event][learner];
      const before = heights[event ? event - 1 : 0][event ? parent : learner];
      const [here, from, to] = [heights[event][learner], x(step), x(ends[event])];
      if (before === null || here === null) continue;
      const turn = from + bend * (to - from);
      const piece = `M${from.toFixed(1)} ${y(before).toFixed(1)}L${turn.toFixed(1)} ${y(here).toFixed(1)}L${to.toFixed(1)} ${y(here).toFixed(1)}`;
      groups[data.line[event] === learner ? "line" : data.remains[event][learner] ? "remains" : "ended"] +=
        piece;
    }
  });
  const wide = Math.max(0.6, Math.min(1.5, 24 / learners));
  const style = { fill: "none", "stroke-linecap": "round", "stroke-linejoin": "round" };
  return [
    svg("path", { d: groups.ended, stroke: "var(--soft)", "stroke-opacity": 0.4, "stroke-width": wide, ...style }),
    svg("path", { d: groups.remains, stroke: "var(--c0)", "stroke-width": wide, ...style }),
    svg("path", { d: groups.line, stroke: "var(--c1)", "stroke-width": 2.8, ...style }),
  ];
}

export function treeChart(onPick) {
  let data = null;
  let rows = [];
  let at = null;
  const chart = figure(describe, draw, { move, leave, pick, key });

  function describe() {
    return `Lineage of ${data.parent[0].length} learners over ${data.steps.length - 1} selections; the best is learner ${data.best}, from learner ${data.line[0]} at the start`;
  }

  function draw(width) {
    const learners = data.parent[0].length;
    const height = Math.max(160, Math.min(520, 40 + learners * 14));
    const box = { left: 12, top: 8, right: width - 40, bottom: height - 34 };
    const x = scale([0, data.end], [box.left, box.right]);
    const y = scale([-0.5, learners - 0.5], [box.top, box.bottom]);
    const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    drawn.append(
      axes(box, x, y, ticks(0, data.end, width / 110), [], "steps per learner"),
      ...branches(data, data.places, x, y, BEND),
    );
    rows = data.places.at(-1).map((place, learner) => ({ learner, y: y(place), x: box.right }));
    rows.forEach((row) => {
      if (learners > MANY && row.learner !== data.best) return;
      drawn.append(
        svg(
          "text",
          { class: row.learner === data.best ? "label" : "", x: box.right + 8, y: row.y + 4 },
          String(row.learner),
        ),
      );
    });
    return drawn;
  }

  function move(px, py) {
    at = rows.reduce((best, row) => (Math.abs(row.y - py) < Math.abs(best.y - py) ? row : best), rows[0]);
    tell();
  }

  function tell() {
    if (!at) return chart.showTip("");
    const last = data.replaced.filter((one) => one.learner === at.learner).at(-1);
    const copied = last ? `\ncopy of ${last.parent} since step ${whole(last.step)}` : "";
    chart.showTip(
      `learner ${at.learner}: return ${number(data.scores[at.learner])}${copied}`,
      at.x - 150,
      at.y,
    );
  }

  function leave() {
    at = null;
    tell();
  }

  function pick() {
    if (at) onPick(at.learner);
  }

  function key(name) {
    if (name === "Enter") return pick() ?? true;
    if (name !== "ArrowUp" && name !== "ArrowDown") return false;
    const order = [...rows].sort((a, b) => a.y - b.y);
    const place = at
      ? order.findIndex((row) => row.learner === at.learner) + (name === "ArrowDown" ? 1 : -1)
      : 0;
    at = order[Math.max(0, Math.min(order.length - 1, place))];
    tell();
    return true;
  }

  return { node: chart.node, update: (fresh) => ((data = fresh), chart.refresh()) };
}

export function pathsChart() {
  let data = null; // the lineage with {name, values}
  const chart = figure(describe, draw);

  function describe() {
    const best = data.values.at(-1)[data.best];
    return `${data.name} of every learner over steps; the best learner's is ${number(best)}`;
  }

  function draw(width) {
    const height = 180;
    const box = { left: 50, top: 8, right: width - 12, bottom: height - 36 };
    const range = extent(data.values) ?? [0, 1];
    const logarithmic = range[0] > 0 && range[1] > 10 * range[0];
    const x = scale([0, data.end], [box.left, box.right]);
    const y = scale(range, [box.bottom, box.top], logarithmic);
    const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    const marks = logarithmic ? logTicks(...range) : ticks(...range, 4);
    drawn.append(
      axes(box, x, y, ticks(0, data.end, width / 110), marks, "steps per learner"),
      ...branches(data, data.values, x, y, 0),
    );
    return drawn;
  }

  return { node: chart.node, update: (fresh) => ((data = fresh), chart.refresh()) };
}
