// A table of learners by time as colours; the best learner is on top.

import { h } from "../dom.js";
import { number, whole } from "../format.js";
import { shade, shadeBar } from "./shade.js";
import { figure } from "./figure.js";

const HEIGHT = 300;

export function heatmap({ onPick }) {
  let data = null; // {heat: {rows, columns, low, high, cells, order}, x, title}
  let cells = null;
  let at = null; // [row, column]
  const chart = figure(describe, draw, { move, leave, pick, key });
  const low = h("span");
  const high = h("span");
  chart.node.append(h("div", { class: "scale" }, low, shadeBar(), high));

  function describe() {
    return data
      ? `${data.title}: ${data.heat.rows} learners by time, the highest last value on top`
      : "no values yet";
  }

  function draw() {
    const { rows, columns } = data.heat;
    const canvas = h("canvas", { class: "heat", width: columns, height: rows });
    canvas.style.height = `${Math.min(HEIGHT, Math.max(60, rows * 12))}px`;
    canvas.style.imageRendering = rows <= 300 ? "pixelated" : "auto";
    const context = canvas.getContext("2d");
    const image = context.createImageData(columns, rows);
    for (let index = 0; index < cells.length; index++) {
      const [red, green, blue] = cells[index] ? shade((cells[index] - 1) / 254) : [128, 128, 128];
      image.data.set([red, green, blue, cells[index] ? 255 : 60], 4 * index);
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }

  function move(px, py) {
    const canvas = chart.node.querySelector("canvas.heat");
    if (!data || !canvas) return;
    const row = Math.floor((py / canvas.clientHeight) * data.heat.rows);
    const column = Math.floor((px / canvas.clientWidth) * data.heat.columns);
    at = row >= 0 && row < data.heat.rows && column >= 0 && column < data.heat.columns ? [row, column] : null;
    tell();
  }

  function tell() {
    if (!at) return chart.showTip("");
    const canvas = chart.node.querySelector("canvas.heat");
    const { rows, columns, order, low: least, high: most } = data.heat;
    const cell = cells[at[0] * columns + at[1]];
    const value = cell ? `about ${number(least + ((cell - 1) / 254) * (most - least), 3)}` : "no value";
    const place = [
      ((at[1] + 0.5) / columns) * canvas.clientWidth,
      ((at[0] + 0.5) / rows) * canvas.clientHeight,
    ];
    chart.showTip(`learner ${order[at[0]]}: ${value}\nstep ${whole(data.x[at[1]])}`, ...place);
  }

  function leave() {
    at = null;
    tell();
  }

  function pick() {
    if (at) onPick(data.heat.order[at[0]]);
  }

  function key(name) {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (name === "Escape") return leave() ?? true;
    if (name === "Enter") return pick() ?? true;
    if (!(name in moves) || !data) return false;
    const [row, column] = at ?? [0, data.heat.columns - 1];
    const [dr, dc] = at ? moves[name] : [0, 0];
    at = [clamp(row + dr, data.heat.rows - 1), clamp(column + dc, data.heat.columns - 1)];
    tell();
    return true;
  }

  return {
    node: chart.node,
    update(fresh) {
      data = fresh;
      cells = Uint8Array.from(atob(data.heat.cells), (letter) => letter.charCodeAt(0));
      low.textContent = number(data.heat.low);
      high.textContent = number(data.heat.high);
      chart.say(
        "A row for each learner, the highest last value on top; time runs to the right. A click opens a learner.",
      );
      chart.refresh();
    },
  };
}

const clamp = (value, high) => Math.max(0, Math.min(high, value));
