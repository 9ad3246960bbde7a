// A scale of colours from low to high that also reads in grey and with colour blindness: Cividis
// (Nuñez, Anderton, Renslow: PLoS ONE 13(7), 2018).

import { h } from "../dom.js";

const STOPS = [
  [0, 34, 78],
  [18, 53, 112],
  [59, 73, 108],
  [87, 93, 109],
  [112, 113, 115],
  [138, 134, 120],
  [165, 156, 116],
  [195, 179, 105],
  [225, 204, 85],
  [254, 232, 56],
];

export function shade(share) {
  const place = Math.max(0, Math.min(1, share)) * (STOPS.length - 1);
  const index = Math.min(STOPS.length - 2, Math.floor(place));
  const rest = place - index;
  return STOPS[index].map((from, i) => Math.round(from + rest * (STOPS[index + 1][i] - from)));
}

export const shadeText = (share) => `rgb(${shade(share).join(",")})`;

export function shadeBar() {
  const canvas = h("canvas", { width: 64, height: 1, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  const image = context.createImageData(64, 1);
  for (let i = 0; i < 64; i++) image.data.set([...shade(i / 63), 255], 4 * i);
  context.putImageData(image, 0, 0);
  return canvas;
}
