// A sparkline: the course of a number, without axes.

import { svg } from "../dom.js";
import { number } from "../format.js";
import { extent, scale } from "./axes.js";

const WIDTH = 120;
const HEIGHT = 26;

export function sparkline(values) {
  const range = extent([values]);
  const picture = svg("svg", {
    width: WIDTH,
    height: HEIGHT,
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    role: "img",
  });
  const known = values.map((value, index) => [index, value]).filter(([, value]) => value !== null);
  const ends = known.length ? `from ${number(known[0][1])} to ${number(known.at(-1)[1])}` : "none yet";
  picture.setAttribute("aria-label", `return over time: ${ends}`);
  if (!range) return picture;
  const x = scale([0, Math.max(1, values.length - 1)], [2, WIDTH - 4]);
  const y = scale(range, [HEIGHT - 3, 3]);
  const points = known.map(([index, value]) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`);
  picture.append(
    svg("polyline", { points: points.join(" "), fill: "none", stroke: "var(--c0)", "stroke-width": 1.5 }),
  );
  const [lastIndex, lastValue] = known.at(-1);
  picture.append(svg("circle", { cx: x(lastIndex), cy: y(lastValue), r: 2.2, fill: "var(--c0)" }));
  return picture;
}
