"use strict";

// Colours are CSS variables, so that plots follow the page into the dark and onto paper without being drawn again.
const data = JSON.parse(document.getElementById("plots").textContent);
const STATES = ["complete", "pruned", "infeasible", "failed"];
const ROLES = ["recommended", "Triton default"];
const ROLE_COLORS = ["var(--winner)", "var(--baseline)"];
const STATE_SYMBOLS = ["circle", "circle", "times", "triangle"];
const STATE_MEANINGS = ["complete", "pruned: dropped early", "infeasible: over the limit at any rate", "failed"];
const GRID = { stroke: "var(--rule)", strokeOpacity: 1 };

const short = (value) => (value >= 1000 ? d3.format(",.0f")(value) : String(+value.toPrecision(3)));
const roleColor = { domain: ROLES, range: ROLE_COLORS };

function logTicks(low, high, most) {
  const steps = [1, 2, 5].flatMap((step) => d3.range(-4, 8).map((power) => step * 10 ** power));
  const inside = steps.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001).sort(d3.ascending);
  return inside.length > most ? inside.filter((tick) => Number.isInteger(+Math.log10(tick).toFixed(9))) : inside;
}

function logDomain(values) {
  const [low, high] = d3.extent(values);
  return [low / 1.25, high * 1.3];
}

// What the axes share: room for labels, fewer ticks on narrow screens.
function base(width, height, more) {
  return { width, height, marginLeft: 54, marginRight: 22, marginTop: 30, marginBottom: 44, ...more };
}

// The ticks' labels are given as text: a format would go through D3's, which drops some of them on log scales.
function logAxis(domain, label) {
  const ticks = logTicks(...domain, 9);
  return [Plot.gridY(ticks, GRID), Plot.axisY(ticks, { text: short, label })];
}

function limitRule(limit) {
  return [
    Plot.ruleY([limit], { stroke: "var(--limit)", strokeDasharray: "5 4" }),
    Plot.text([limit], {
      y: (d) => d, text: (d) => `limit ${short(d)} ms`, frameAnchor: "left", textAnchor: "start", dx: 6, dy: -8,
      fill: "var(--limit)", stroke: "var(--paper)", strokeWidth: 4,
    }),
  ];
}

const symbols = {
  dot: (color) => `<circle cx="7" cy="7" r="4.5" fill="${color}"/>`,
  ring: (color) => `<circle cx="7" cy="7" r="4" fill="none" stroke="${color}" stroke-width="1.5"/>`,
  cross: (color) => `<path d="M3 3L11 11M11 3L3 11" stroke="${color}" stroke-width="1.7"/>`,
  triangle: (color) => `<path d="M7 2.5L12 11.5H2Z" fill="none" stroke="${color}" stroke-width="1.5"/>`,
  diamond: (color) => `<path d="M7 1L12.5 7L7 13L1.5 7Z" fill="${color}"/>`,
  line: (color) => `<path d="M0 7H14" stroke="${color}" stroke-width="2"/>`,
  thin: (color) => `<path d="M0 9L14 5" stroke="${color}" stroke-opacity="0.6"/><circle cx="7" cy="7" r="1.6" fill="${color}"/>`,
  dashes: (color) => `<path d="M0 7H14" stroke="${color}" stroke-width="1.5" stroke-dasharray="4 3"/>`,
  square: (color) => `<rect x="2" y="2" width="10" height="10" fill="${color}"/>`,
};

function key(entries) {
  const list = document.createElement("div");
  list.className = "key";
  for (const [kind, color, text] of entries) {
    const entry = document.createElement("span");
    entry.innerHTML = `<svg width="14" height="14" aria-hidden="true">${symbols[kind](color)}</svg>`;
    entry.append(text);
    list.append(entry);
  }
  return list;
}

function stateMarks(points, x, y, title) {
  return STATES.map((state, index) => {
    const own = points.filter((point) => point.state === state);
    const color = `var(--${state})`;
    return Plot.dot(own, {
      x, y, r: 4.5, symbol: STATE_SYMBOLS[index], stroke: color, strokeWidth: 1.6,
      fill: state === "complete" ? color : "none", title, tip: { fill: "var(--panel)" },
    });
  });
}

function stateKey(points) {
  const kinds = ["dot", "ring", "cross", "triangle"];
  return STATES.map((state, index) => [kinds[index], `var(--${state})`, STATE_MEANINGS[index], state])
    .filter((entry) => points.some((point) => point.state === entry[3]));
}

const draw = {
  rates({ points, runs, certified, frontier, limit, quantile }, width) {
    const y = logDomain([...points.map((d) => d.p99), ...runs.map((d) => d.p99), ...certified.flatMap((d) => [d.low, d.high]), limit]);
    const most = d3.max([...points, ...runs, ...certified], (d) => d.rate);
    const steps = frontier.map(([rate, p99]) => ({ rate, p99 }));
    const say = (d) => `trial ${d.trial}: ${d.knobs}\n${short(d.rate)}/s, ${quantile} ${short(d.p99)} ms`;
    const entries = stateKey(points);
    if (runs.length) entries.push(["thin", "var(--frontier)", "load runs of a trial"]);
    entries.push(...certified.map((d) => ["diamond", ROLE_COLORS[ROLES.indexOf(d.role)], `${d.role}, certified`]));
    entries.push(["line", "var(--frontier)", "frontier"], ["dashes", "var(--limit)", "limit"]);
    const plot = Plot.plot(base(width, Math.max(300, Math.min(430, width * 0.55)), {
      ariaLabel: `Rate and ${quantile} of every trial`,
      x: { label: "requests/s →", domain: [0, most * 1.06], ticks: width / 110, grid: false },
      y: { type: "log", domain: y, axis: null },
      color: roleColor,
      marks: [
        ...logAxis(y, `↑ ${quantile}, ms`),
        Plot.line(runs, { x: "rate", y: "p99", z: "trial", stroke: "var(--frontier)", strokeOpacity: 0.4 }),
        Plot.dot(runs, { x: "rate", y: "p99", r: 1.6, fill: "var(--frontier)" }),
        Plot.line(steps, { x: "rate", y: "p99", stroke: "var(--frontier)", strokeWidth: 1.5, curve: "step-before" }),
        ...limitRule(limit),
        ...stateMarks(points, "rate", "p99", (d) => `${say(d)}\n${STATE_MEANINGS[STATES.indexOf(d.state)]}`),
        Plot.ruleX(certified, { x: "rate", y1: "low", y2: "high", stroke: "role", strokeWidth: 2 }),
        Plot.dot(certified, {
          x: "rate", y: "p99", r: 7, symbol: "diamond", fill: "role", stroke: "var(--paper)", tip: { fill: "var(--panel)" },
          title: (d) => `${d.role}, certified\n${say(d)} (${short(d.low)} to ${short(d.high)})`,
        }),
      ],
    }));
    return [key(entries), plot];
  },

  quantiles({ points, ticks, limit }, width) {
    const y = logDomain([...points.map((d) => d.ms), limit]);
    const roles = [...new Map(points.map((d) => [d.role, d])).values()];
    const plot = Plot.plot(base(width, 320, {
      ariaLabel: "Latency quantiles",
      x: { label: "share of requests that were faster →", ticks: ticks.map((d) => d[0]), tickFormat: (d) => new Map(ticks).get(d) },
      y: { type: "log", domain: y, axis: null },
      color: roleColor,
      marks: [
        ...logAxis(y, "↑ ms"),
        ...limitRule(limit),
        Plot.line(points, { x: "nines", y: "ms", stroke: "role", strokeWidth: 2, curve: "monotone-x" }),
        Plot.dot(points, {
          x: "nines", y: "ms", fill: "role", r: 3.5, tip: { fill: "var(--panel)" },
          title: (d) => `${d.role} at ${short(d.rate)}/s\n${d.name}: ${short(d.ms)} ms`,
        }),
      ],
    }));
    return [key(roles.map((d) => ["line", ROLE_COLORS[ROLES.indexOf(d.role)], `${d.role} at ${short(d.rate)}/s`])), plot];
  },

  stages({ bars, stages }, width) {
    const roles = [...new Set(bars.map((d) => d.role))];
    const colors = stages.map((_, index) => `var(--stage-${index + 1})`);
    const plot = Plot.plot(base(width, 62 * roles.length + 60, {
      ariaLabel: "Mean time in each stage", marginLeft: 104, marginTop: 8,
      x: { label: "ms →", ticks: width / 110 },
      y: { label: null, domain: roles, padding: 0.25 },
      color: { domain: stages, range: colors },
      marks: [
        Plot.gridX({ ticks: width / 110, ...GRID }),
        Plot.barX(bars, Plot.stackX({
          x: "ms", y: "role", fill: "stage", order: stages, inset: 0.5, tip: { fill: "var(--panel)" },
          title: (d) => `${d.role}\n${d.stage}: ${short(d.ms)} ms`,
        })),
      ],
    }));
    return [key(stages.map((stage, index) => ["square", colors[index], stage])), plot];
  },

  search({ points, best }, width) {
    const plot = Plot.plot(base(width, 320, {
      ariaLabel: "Rates of the trials over time",
      x: { label: "seconds of load and loading →", zero: true, ticks: width / 110 },
      y: { label: "↑ requests/s at the limit", zero: true, tickFormat: short, ticks: 6 },
      marks: [
        Plot.gridY({ ticks: 6, ...GRID }),
        Plot.line(best, { x: "s", y: "rate", stroke: "var(--winner)", strokeWidth: 2, curve: "step-after" }),
        ...stateMarks(points, "s", "rate", (d) => `trial ${d.trial}: ${d.knobs}\n${short(d.rate)}/s, ${d.reason}`),
      ],
    }));
    return [key([...stateKey(points), ["line", "var(--winner)", "best so far"]]), plot];
  },

  importance({ bars }, width) {
    const percent = (d) => `${(100 * d.share).toFixed(0)} %`;
    return [Plot.plot(base(width, 34 * bars.length + 16, {
      ariaLabel: "Share of each knob", marginLeft: 148, marginTop: 4, marginBottom: 12, marginRight: 48,
      x: { axis: null, domain: [0, d3.max(bars, (d) => d.share)] },
      y: { label: null, domain: bars.map((d) => d.knob), padding: 0.3 },
      marks: [
        Plot.barX(bars, { x: "share", y: "knob", fill: "var(--winner)" }),
        Plot.text(bars, { x: "share", y: "knob", text: percent, textAnchor: "start", dx: 6, fill: "currentColor" }),
      ],
    }))];
  },

  replicas({ steps, wanted, widest }, width) {
    const roles = [...new Set(steps.map((d) => d.role))];
    const plot = Plot.plot(base(width, 320, {
      ariaLabel: "Cost an hour over the traffic",
      x: { label: "requests/s to serve →", domain: [0, widest], ticks: width / 110 },
      y: { label: "↑ USD an hour", zero: true, ticks: 6 },
      color: roleColor,
      marks: [
        Plot.gridY({ ticks: 6, ...GRID }),
        Plot.ruleX(wanted ? [wanted] : [], { stroke: "var(--soft)", strokeDasharray: "5 4" }),
        ...roles.map((role) => Plot.line(
          steps.filter((d) => d.role === role).flatMap((d) => [{ ...d, x: d.from }, { ...d, x: d.to }]),
          { x: "x", y: "usd", stroke: "role", strokeWidth: 2 },
        )),
        Plot.dot(steps, {
          x: "to", y: "usd", fill: "role", r: 3.5, tip: { fill: "var(--panel)" },
          title: (d) => `${d.role}\n${d.replicas} replicas: up to ${short(d.to)}/s, $${d.usd.toFixed(3)} an hour`,
        }),
      ],
    }));
    return [key(roles.map((role) => ["line", ROLE_COLORS[ROLES.indexOf(role)], role])), plot];
  },
};

function drawAll() {
  for (const place of document.querySelectorAll("[data-plot]")) {
    const name = place.dataset.plot;
    const width = Math.max(300, Math.round(place.clientWidth));
    if (place.dataset.width === String(width)) continue;
    place.dataset.width = width;
    place.replaceChildren(...draw[name](data[name], width));
    place.dataset.drawn = "yes";
  }
}

function sortable(table) {
  const body = table.tBodies[0];
  const headings = [...table.querySelectorAll("thead th")];
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.order === undefined ? cell.textContent : Number(cell.dataset.order);
  };
  const order = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // what is not known comes last
    return a.localeCompare(b, "en", { numeric: true });
  };
  headings.forEach((heading, column) => heading.querySelector("button").addEventListener("click", () => {
    const down = heading.getAttribute("aria-sort") === "ascending";
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => order(value(a, column), value(b, column)) * (down ? -1 : 1));
    body.append(...rows);
  }));
}

document.querySelectorAll("table.sortable").forEach(sortable);
drawAll();
new ResizeObserver(drawAll).observe(document.body);
