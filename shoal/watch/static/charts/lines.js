// Curves over steps: lines, bands between two lines, labels at their ends, a cursor.

import { svg } from "../dom.js";
import { number, whole } from "../format.js";
import { axes, extent, roomFor, scale, spread, ticks } from "./axes.js";
import { figure } from "./figure.js";

// data: {x, series: [{name, values, x?, colour, width, opacity, label, key}], bands: [{x?, low, high, colour}],
//        title, xLabel, caption}
export function lineChart({ height = 240, onPick = null } = {}) {
  let data = null;
  let box, x, y, marker;
  let at = null; // {series, index} under the cursor
  const chart = figure(describe, draw, { move, leave, pick, key });

  const xOf = (one) => one.x ?? data.x;

  function describe() {
    if (!data) return "no values yet";
    const last = data.series
      .filter((one) => one.label)
      .map((one) => `${one.label} ${number(lastOf(one.values))}`);
    return `${data.title} over ${data.xLabel}${last.length ? `; last: ${last.join(", ")}` : ""}`;
  }

  function draw(width) {
    const labelled = data.series.filter((one) => one.label && lastOf(one.values) !== null);
    const room = Math.min(
      150,
      width * 0.3,
      16 + 6.8 * Math.max(0, ...labelled.map((one) => one.label.length)),
    );
    const range = extent([
      ...data.series.map((one) => one.values),
      ...data.bands.flatMap((b) => [b.low, b.high]),
    ]);
    const domain = extent([...data.series, ...data.bands].map(xOf)) ?? [0, 1];
    const yTicks = range ? ticks(...range, height / 55) : [];
    box = { left: roomFor(yTicks), top: 8, right: width - Math.max(12, room), bottom: height - 36 };
    x = scale(domain, [box.left, box.right]);
    y = scale(range ?? [0, 1], [box.bottom, box.top]);
    const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    if (!range) {
      drawn.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "no values yet"));
      return drawn;
    }
    const xTicks = ticks(...domain, Math.max(2, (box.right - box.left) / 90));
    drawn.append(axes(box, x, y, xTicks, yTicks, data.xLabel));
    for (const band of data.bands) {
      drawn.append(svg("path", { d: area(band), fill: band.colour, "fill-opacity": band.opacity ?? 0.2 }));
    }
    for (const one of data.series) drawn.append(line(one));
    const heights = spread(
      labelled.map((one) => y(lastOf(one.values))),
      14,
      box.top + 4,
      box.bottom,
    );
    labelled.forEach((one, index) => {
      const place = { class: "label", x: box.right + 8, y: heights[index] + 4 };
      const end = x(xOf(one)[one.values.findLastIndex((value) => value !== null)]);
      drawn.append(svg("circle", { cx: end, cy: y(lastOf(one.values)), r: 3, fill: one.colour }));
      if (end < place.x - 20)
        drawn.append(
          svg("path", {
            d: `M${end} ${y(lastOf(one.values))}L${place.x - 3} ${place.y - 4}`,
            class: "cursor",
            fill: "none",
          }),
        );
      drawn.append(svg("text", place, one.label));
    });
    marker = svg("g");
    drawn.append(marker);
    mark();
    return drawn;
  }

  function line(one) {
    const style = {
      fill: "none",
      stroke: one.colour,
      "stroke-width": one.width ?? 1.6,
      "stroke-opacity": one.opacity ?? 1,
    };
    const dashes = one.dashed ? { "stroke-dasharray": "6 4" } : {};
    return svg("path", {
      d: path(xOf(one), one.values),
      "stroke-linejoin": "round",
      "stroke-linecap": "round",
      ...style,
      ...dashes,
    });
  }

  function path(places, values) {
    let text = "";
    let pen = false;
    values.forEach((value, index) => {
      if (value === null) {
        pen = false;
        return;
      }
      text += `${pen ? "L" : "M"}${x(places[index]).toFixed(1)} ${y(value).toFixed(1)}`;
      if (!pen && (values[index + 1] ?? null) === null) text += "h0"; // a point alone
      pen = true;
    });
    return text;
  }

  function area(band) {
    const known = band.low.map((_, index) => index).filter((index) => band.low[index] !== null);
    const point = (values) => (index) => `${x(xOf(band)[index]).toFixed(1)} ${y(values[index]).toFixed(1)}`;
    if (!known.length) return "";
    return `M${known.map(point(band.high)).join("L")}L${known.reverse().map(point(band.low)).join("L")}Z`;
  }

  function move(px, py) {
    if (!data || !x) return;
    let best = Infinity;
    data.series.forEach((one, series) => {
      const places = xOf(one);
      const index = nearest(places, px);
      if (one.values[index] === null || one.values[index] === undefined) return;
      const away = Math.abs(y(one.values[index]) - py) + Math.abs(x(places[index]) - px);
      if (away < best) [best, at] = [away, { series, index }];
    });
    mark();
  }

  function nearest(places, px) {
    let index = 0;
    for (let i = 1; i < places.length; i++)
      if (Math.abs(x(places[i]) - px) < Math.abs(x(places[index]) - px)) index = i;
    return index;
  }

  function mark() {
    if (!marker) return;
    const one = at && data.series[at.series];
    const value = one?.values[at.index] ?? null;
    if (value === null) {
      marker.replaceChildren();
      return chart.showTip("");
    }
    const [px, py] = [x(xOf(one)[at.index]), y(value)];
    const crossing = svg("line", { class: "cursor", x1: px, x2: px, y1: box.top, y2: box.bottom });
    marker.replaceChildren(
      crossing,
      line({ ...one, width: 2.6, opacity: 1 }),
      svg("circle", { cx: px, cy: py, r: 4, fill: one.colour }),
    );
    chart.showTip(
      `${one.name ? `${one.name}: ` : ""}${number(value, 5)}\nstep ${whole(xOf(one)[at.index])}`,
      px,
      py,
    );
  }

  function leave() {
    at = null;
    mark();
  }

  function pick() {
    const chosen = at && data.series[at.series].key;
    if (onPick && chosen !== undefined && chosen !== null) onPick(chosen);
  }

  function key(name) {
    if (!data?.series.length) return false;
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (name === "Escape") return leave() ?? true;
    if (name === "Enter") return pick() ?? true;
    if (!(name in moves)) return false;
    const [ds, di] = at ? moves[name] : [0, 0];
    const series = clamp((at?.series ?? 0) + ds, data.series.length - 1);
    const values = data.series[series].values;
    let index = clamp((at?.index ?? values.length - 1) + di, values.length - 1);
    while (index > 0 && values[index] === null) index--;
    at = { series, index };
    mark();
    return true;
  }

  return {
    node: chart.node,
    update(fresh) {
      data = fresh;
      if (at && at.series >= data.series.length) at = null;
      chart.say(data.caption ?? "");
      chart.refresh();
    },
  };
}

const clamp = (value, high) => Math.max(0, Math.min(high, value));

function lastOf(values) {
  for (let index = values.length - 1; index >= 0; index--) if (values[index] !== null) return values[index];
  return null;
}
