// Scales and axes: ticks at round numbers, positions in pixels.

import { svg } from "../dom.js";
import { number } from "../format.js";

// About `count` round numbers.
export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= 0.7 * rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) {
    found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  }
  return found;
}

// The lowest and the highest of lists of numbers; where all are one number, a little room around it.
export function extent(lists) {
  let low = Infinity;
  let high = -Infinity;
  for (const list of lists) {
    for (const value of list) {
      if (value === null || value === undefined) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (low > high) return null;
  if (low === high) return [low - (Math.abs(low) * 0.05 || 1), high + (Math.abs(high) * 0.05 || 1)];
  return [low, high];
}

export function scale([low, high], [from, to], logarithmic = false) {
  const place = logarithmic ? Math.log : (value) => value;
  const [start, length] = [place(low), place(high) - place(low) || 1];
  return (value) => from + ((place(value) - start) / length) * (to - from);
}

export function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const one of high < 100 * low ? [1, 2, 5] : [1]) {
      const at = one * 10 ** power;
      if (at >= low * 0.999 && at <= high * 1.001) found.push(at);
    }
  }
  return found;
}

// Numbers of an axis, with as many digits as tell them apart.
export function labels(marks) {
  let digits = 3;
  const written = () => marks.map((at) => number(at, digits));
  while (digits < 10 && new Set(written()).size < marks.length) digits++;
  return written();
}

// The room that the numbers of an upright axis need.
export const roomFor = (marks) =>
  Math.max(50, 14 + 7 * Math.max(0, ...labels(marks).map((text) => text.length)));

// Gridlines and numbers for both directions inside a box {left, top, right, bottom}.
export function axes(box, x, y, xTicks, yTicks, xLabel) {
  const [xNumbers, yNumbers] = [labels(xTicks), labels(yTicks)];
  const parts = yTicks.map((at, index) => [
    svg("line", { class: "gridline", x1: box.left, x2: box.right, y1: y(at), y2: y(at) }),
    svg("text", { x: box.left - 6, y: y(at) + 4, "text-anchor": "end" }, yNumbers[index]),
  ]);
  parts.push(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  xTicks.forEach((at, index) =>
    parts.push(svg("text", { x: x(at), y: box.bottom + 15, "text-anchor": "middle" }, xNumbers[index])),
  );
  if (xLabel) parts.push(svg("text", { x: box.right, y: box.bottom + 30, "text-anchor": "end" }, xLabel));
  return svg("g", { "aria-hidden": "true" }, parts.flat());
}

// Places of labels, in order of height, moved apart so that none covers another.
export function spread(places, gap, low, high) {
  const order = places.map((_, index) => index).sort((a, b) => places[a] - places[b]);
  const found = [...places];
  order.forEach((index, rank) => {
    if (rank) found[index] = Math.max(found[index], found[order[rank - 1]] + gap);
  });
  let limit = high;
  for (const index of [...order].reverse()) {
    found[index] = Math.max(low, Math.min(found[index], limit));
    limit = found[index] - gap;
  }
  return found;
}
