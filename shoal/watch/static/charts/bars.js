// Shares as bars, the largest first.

import { svg } from "../dom.js";
import { figure } from "./figure.js";

const ROW = 28;

export function bars() {
  let shares = [];
  const chart = figure(
    () => shares.map(([name, share]) => `${name} ${Math.round(100 * share)} %`).join(", "),
    draw,
  );

  function draw(width) {
    const height = ROW * Math.max(1, shares.length);
    const left = Math.min(180, width * 0.4);
    const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    shares.forEach(([name, share], index) => {
      const y = index * ROW;
      drawn.append(
        svg(
          "text",
          { class: "label", x: left - 8, y: y + 18, "text-anchor": "end" },
          name.replaceAll("_", " "),
        ),
        svg("rect", {
          x: left,
          y: y + 5,
          width: Math.max(1, (width - left - 56) * share),
          height: ROW - 10,
          fill: "var(--c0)",
          rx: 2,
        }),
        svg("text", { x: left + (width - left - 56) * share + 8, y: y + 18 }, `${Math.round(100 * share)} %`),
      );
    });
    return drawn;
  }

  return {
    node: chart.node,
    update(fresh) {
      shares = Object.entries(fresh).sort(([, a], [, b]) => b - a);
      chart.refresh();
    },
  };
}
