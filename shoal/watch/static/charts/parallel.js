// Parallel coordinates: an axis for each setting and one for the score, a line for each trial. A part of an
// axis is chosen by dragging along it, or with the fields below.

import { h, svg } from "../dom.js";
import { number } from "../format.js";
import { extent, scale } from "./axes.js";
import { figure } from "./figure.js";
import { shadeText } from "./shade.js";

const HEIGHT = 300;
const BOX = { top: 34, bottom: HEIGHT - 16 };
const SCORE = "mean return";

export function parallel(onChosen) {
  let trials = [];
  let axes = []; // {name, values, place(trial), choices}
  let drawn = new Set(); // the names of axes whose values come from a prior
  let drag = null;
  let lines = [];
  const chosen = new Map(); // name -> [from, to] as places between 0 and 1
  const chart = figure(
    () => `${trials.length} trials over ${axes.map((axis) => axis.name).join(", ")}`,
    draw,
  );
  chart.node.addEventListener("pointerdown", begin);
  chart.node.addEventListener("pointermove", extend);
  addEventListener("pointerup", end);
  addEventListener("themechange", () => trials.length && chart.refresh());

  function makeAxis(name, values) {
    const numbers = values.map(Number);
    const distinct = [...new Set(values)];
    const continuous = (drawn.has(name) || distinct.length > 8) && numbers.every(Number.isFinite);
    if (!continuous && name !== SCORE) {
      const choices = distinct.sort((a, b) => a - b || String(a).localeCompare(String(b)));
      const at = (value) => (choices.length > 1 ? choices.indexOf(value) / (choices.length - 1) : 0.5);
      return { name, choices, places: values.map(at), marks: choices.map((choice) => [at(choice), choice]) };
    }
    const range = extent([numbers]) ?? [0, 1];
    const place = scale(range, [0, 1], range[0] > 0 && range[1] > 30 * range[0]);
    return { name, places: numbers.map(place), marks: range.map((end) => [place(end), number(end)]) };
  }

  // The part of the scale that stands out from the page.
  const visible = (share) =>
    document.documentElement.dataset.theme === "dark" ? 0.3 + 0.7 * share : 0.85 * share;

  const isChosen = (index) =>
    axes.every((axis) => {
      const part = chosen.get(axis.name);
      return !part || (axis.places[index] >= part[0] - 1e-9 && axis.places[index] <= part[1] + 1e-9);
    });

  function draw(width) {
    const left = 30;
    const right = width - 70;
    const xOf = (index) => left + (index / Math.max(1, axes.length - 1)) * (right - left);
    const yOf = (place) => BOX.bottom - place * (BOX.bottom - BOX.top);
    const narrow = axes.length > 1 && xOf(1) - xOf(0) < 100;
    const high = (place) => (narrow ? [11, 25][place % 2] : 16); // titles that would cover each other
    const picture = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` });
    const scores = axes.at(-1)?.places ?? [];
    const order = trials.map((_, index) => index).sort((a, b) => scores[a] - scores[b]);
    lines = [];
    for (const index of order) {
      const points = axes
        .map((axis, place) => `${xOf(place).toFixed(1)},${yOf(axis.places[index]).toFixed(1)}`)
        .join(" ");
      lines[index] = svg("polyline", {
        points,
        fill: "none",
        stroke: shadeText(visible(scores[index])),
        "stroke-width": 1.6,
      });
      picture.append(lines[index]);
    }
    axes.forEach((axis, place) => {
      const x = xOf(place);
      const anchor = place === axes.length - 1 && axes.length > 1 ? "end" : place ? "middle" : "start";
      picture.append(
        svg("line", { class: "axis", x1: x, x2: x, y1: BOX.top, y2: BOX.bottom, "stroke-width": 2 }),
      );
      picture.append(
        svg(
          "text",
          { class: "label", x: anchor === "end" ? x + 66 : x, y: high(place), "text-anchor": anchor },
          axis.name.replaceAll("_", " "),
        ),
      );
      for (const [at, text] of axis.marks) {
        picture.append(svg("text", { class: "mark", x: x + 6, y: yOf(at) + 4 }, text));
      }
      axis.part = svg("rect", {
        x: x - 8,
        width: 16,
        fill: "var(--c1)",
        "fill-opacity": 0.35,
        y: 0,
        height: 0,
      });
      picture.append(
        axis.part,
        svg("rect", {
          "data-axis": place,
          x: x - 14,
          y: BOX.top - 6,
          width: 28,
          height: BOX.bottom - BOX.top + 12,
          fill: "transparent",
          cursor: "ns-resize",
        }),
      );
    });
    show();
    return picture;
  }

  function show() {
    for (const axis of axes) {
      const part = chosen.get(axis.name);
      axis.part?.setAttribute("y", part ? BOX.bottom - part[1] * (BOX.bottom - BOX.top) : 0);
      axis.part?.setAttribute("height", part ? Math.max(2, (part[1] - part[0]) * (BOX.bottom - BOX.top)) : 0);
    }
    trials.forEach((_, index) => lines[index]?.setAttribute("stroke-opacity", isChosen(index) ? 0.95 : 0.08));
    const kept = trials.filter((_, index) => isChosen(index));
    const unscored = chosen.size ? [] : all.filter((trial) => trial.mean === null);
    chart.say(
      chosen.size
        ? `${kept.length} of ${trials.length} trials chosen`
        : "Drag along an axis to choose trials; the yellower, the higher the return.",
    );
    onChosen(new Set([...kept, ...unscored].map((trial) => trial.number)));
  }

  let all = [];

  function placeOf(event) {
    const box = chart.node.getBoundingClientRect();
    return Math.max(0, Math.min(1, (BOX.bottom - (event.clientY - box.top)) / (BOX.bottom - BOX.top)));
  }

  function begin(event) {
    const axis = axes[event.target.dataset?.axis];
    if (!axis) return;
    event.preventDefault();
    drag = { axis, from: placeOf(event) };
    chosen.delete(axis.name);
    show();
  }

  function extend(event) {
    if (!drag) return;
    const to = placeOf(event);
    chosen.set(drag.axis.name, [Math.min(drag.from, to), Math.max(drag.from, to)]);
    show();
  }

  function end() {
    drag = null;
  }

  function filterOf(axis) {
    if (axis.choices) {
      const select = h(
        "select",
        {},
        h("option", { value: "" }, "any"),
        axis.choices.map((choice) => h("option", { value: choice }, choice)),
      );
      select.addEventListener("change", () => {
        const place = axis.choices.indexOf(select.value);
        const at = axis.choices.length > 1 ? place / (axis.choices.length - 1) : 0.5;
        place < 0 ? chosen.delete(axis.name) : chosen.set(axis.name, [at, at]);
        show();
      });
      return h("label", {}, `${axis.name.replaceAll("_", " ")} `, select);
    }
    const select = h(
      "select",
      {},
      ["any", "lower half", "upper half", "highest tenth"].map((name) => h("option", {}, name)),
    );
    const parts = { "lower half": [0, 0.5], "upper half": [0.5, 1], "highest tenth": [0.9, 1] };
    select.addEventListener("change", () => {
      parts[select.value] ? chosen.set(axis.name, parts[select.value]) : chosen.delete(axis.name);
      show();
    });
    return h("label", {}, `${axis.name.replaceAll("_", " ")} `, select);
  }

  return {
    node: chart.node,
    filters: () => axes.map(filterOf),
    update(data) {
      all = data.trials;
      drawn = new Set(data.drawn);
      trials = data.trials.filter((trial) => trial.mean !== null);
      axes = data.axes.map((name, place) =>
        makeAxis(
          name,
          trials.map((trial) => trial.values[place]),
        ),
      );
      axes.push(
        makeAxis(
          SCORE,
          trials.map((trial) => trial.mean),
        ),
      );
      chart.refresh();
    },
  };
}
