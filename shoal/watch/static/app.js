// The page: which view is shown, and its refreshing.

import { Problem } from "./api.js";
import { h, setText } from "./dom.js";
import { followTheme } from "./theme.js";
import { compareView } from "./views/compare.js";
import { learnerView } from "./views/learner.js";
import { overviewView } from "./views/overview.js";
import { runView } from "./views/run.js";
import { sweepView } from "./views/sweep.js";

const EVERY = 1500; // a new row is seen within 2 s; drawing costs a training on the same cores
const WHILE_HIDDEN = 10000;
const VIEWS = [
  [/^\/$/, overviewView],
  [/^\/run\/([0-9a-f]+)$/, runView],
  [/^\/run\/([0-9a-f]+)\/learner\/(\d+)$/, learnerView],
  [/^\/compare$/, compareView],
  [/^\/sweep\/([0-9a-f]+)$/, sweepView],
];

const root = document.getElementById("view");
const connection = document.getElementById("connection");
let current = null;
let timer = 0;

function show() {
  const [path, search] = (location.hash.replace(/^#/, "") || "/").split("?");
  if (!path.startsWith("/")) return; // the link that skips to the content
  const [pattern, make] = VIEWS.find(([one]) => one.test(path)) ?? [/^/, missing];
  root.replaceChildren();
  current?.close?.();
  current = make(root, ...path.match(pattern).slice(1), new URLSearchParams(search));
  scrollTo(0, 0);
  tick();
}

function missing(node) {
  node.append(h("h1", {}, "There is no such page"), h("p", {}, h("a", { href: "#/" }, "All runs")));
  return { refresh: async () => {} };
}

async function tick() {
  clearTimeout(timer);
  const own = current;
  try {
    await own.refresh();
    report("");
  } catch (error) {
    if (own === current) report(error instanceof Problem ? error.message : offline(error));
  }
  if (own === current) timer = setTimeout(tick, document.hidden ? WHILE_HIDDEN : EVERY);
}

function offline(error) {
  if (!(error instanceof TypeError) || !/fetch|network|load/i.test(error.message)) console.error(error);
  return "No answer from shoal watch; trying again";
}

function report(text) {
  setText(connection, text);
  connection.hidden = !text;
}

followTheme(document.getElementById("theme"));
addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => !document.hidden && tick());
show();
