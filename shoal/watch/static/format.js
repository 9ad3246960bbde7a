// Numbers, times and sizes in few letters.

const MINUS = "\u2212";

export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const [divisor, unit] =
    size >= 1e9 ? [1e9, "G"] : size >= 1e6 ? [1e6, "M"] : size >= 1e4 ? [1e3, "k"] : [1, ""];
  const shown = unit || size < 1e3 ? digits : Math.max(digits, 4); // 4096 stays 4096
  const text = Number((value / divisor).toPrecision(shown));
  const plain = size !== 0 && size < 1e-3 ? text.toExponential() : String(text);
  return plain.replace("-", MINUS).replace("e-", `e${MINUS}`) + unit;
}

export const score = (value) =>
  value === null || value === undefined
    ? "–"
    : (Math.abs(value) >= 10 ? value.toFixed(1) : value.toFixed(2)).replace("-", MINUS);

export const whole = (value) => Math.round(value).toLocaleString("en-US");

export function duration(seconds) {
  const units = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  let rest = Math.max(0, Math.round(seconds));
  const first = units.findIndex(([, size]) => rest >= size);
  if (first < 0) return "0 s";
  return units
    .slice(first, first + 2)
    .map(([unit, size]) => {
      const count = Math.floor(rest / size);
      rest -= count * size;
      return count ? `${count} ${unit}` : "";
    })
    .join(" ")
    .trim();
}

export const ago = (time) =>
  `${duration(Date.now() / 1000 - time)
    .split(" ")
    .slice(0, 2)
    .join(" ")} ago`;

export const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
