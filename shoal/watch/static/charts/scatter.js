// Points of learners: one number over another.

import { svg } from "../dom.js";
import { number } from "../format.js";
import { axes, extent, roomFor, scale, ticks } from "./axes.js";
import { figure } from "./figure.js";

const HEIGHT = 200;

export function scatter(onPick) {
  let data = null;
  let points = [];
  let at = null;
  const chart = figure(() => `${data.title} over ${data.xLabel}, a point for each learner`, draw, {
    move,
    leave,
    pick,
    key,
  });

  function draw(width) {
    const [xRange, yRange] = [extent([data.x]) ?? [0, 1], extent([data.y]) ?? [0, 1]];
    const yTicks = ticks(...yRange, 4);
    const box = { left: roomFor(yTicks), top: 8, right: width - 14, bottom: HEIGHT - 36 };
    const x = scale(xRange, [box.left + 6, box.right - 6]);
    const y = scale(yRange, [box.bottom - 6, box.top + 6]);
    points = data.x.map((value, index) => [x(value), data.y[index] === null ? null : y(data.y[index])]);
    const drawn = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` });
    drawn.append(axes(box, x, y, ticks(...xRange, box.right / 100), yTicks, data.xLabel));
    points.forEach(([px, py]) => {
      if (py !== null)
        drawn.append(
          svg("circle", {
            cx: px,
            cy: py,
            r: data.x.length > 100 ? 2.5 : 4.5,
            fill: "var(--c0)",
            "fill-opacity": 0.7,
          }),
        );
    });
    return drawn;
  }

  function move(px, py) {
    let best = 30;
    at = null;
    points.forEach(([cx, cy], index) => {
      const away = cy === null ? Infinity : Math.hypot(cx - px, cy - py);
      if (away < best) [best, at] = [away, index];
    });
    tell();
  }

  function tell() {
    if (at === null) return chart.showTip("");
    chart.showTip(
      `learner ${at}: ${number(data.y[at])}\n${data.xLabel} ${number(data.x[at])}`,
      ...points[at],
    );
  }

  function leave() {
    at = null;
    tell();
  }

  function pick() {
    if (at !== null) onPick(at);
  }

  function key(name) {
    if (name === "Enter") return pick() ?? true;
    if (name !== "ArrowLeft" && name !== "ArrowRight") return false;
    const order = points
      .map((_, index) => index)
      .filter((index) => points[index][1] !== null)
      .sort((a, b) => data.x[a] - data.x[b]);
    if (!order.length) return false;
    const place = at === null ? 0 : order.indexOf(at) + (name === "ArrowRight" ? 1 : -1);
    at = order[Math.max(0, Math.min(order.length - 1, place))];
    tell();
    return true;
  }

  return { node: chart.node, update: (fresh) => ((data = fresh), chart.refresh()) };
}
