"use strict";

// Colours are CSS variables, so that plots follow the page into the dark and onto paper without being drawn again.
const data = JSON.parse(document.getElementById("plots").textContent);
const ROLES = ["recommended", "this run", "Triton default", "as configured"];
const ROLE_COLORS = ["var(--winner)", "var(--winner)", "var(--baseline)", "var(--baseline)"];
const GRID = { stroke: "var(--rule)", strokeOpacity: 1 };

const short = (value) => (value >= 1000 ? d3.format(",.0f")(value) : String(+value.toPrecision(3)));
const roleColor = { domain: ROLES, range: ROLE_COLORS };
const colorOf = (role) => ROLE_COLORS[ROLES.indexOf(role)];

function logTicks(low, high, most) {
  const steps = [1, 2, 5].flatMap((step) => d3.range(-4, 8).map((power) => step * 10 ** power));
  const inside = steps.filter((tick) => tick >= low * 1.02 && tick <= high * 1.001).sort(d3.ascending);
  if (inside.length < 2) return d3.ticks(low * 1.03, high * 0.97, 4);
  return inside.length > most ? inside.filter((tick) => Number.isInteger(+Math.log10(tick).toFixed(9))) : inside;
}

const xTicks = (width) => Math.max(3, width / 110); // D3 makes two at least of three

function logDomain(values) {
  const [low = 1, high = 10] = d3.extent(values.filter((value) => value > 0));
  return [low / 1.25, high * 1.3];
}

// An axis starts where the data are, with some room at both ends, and never below zero; so wide that labels of
// three digits differ.
function domain(values) {
  const [low = 0, high = 1] = d3.extent(values);
  const room = Math.max(0.06 * (high - low), 0.03 * Math.abs(high)) || 1;
  return [Math.max(0, low - room), high + room];
}

// Options that all plots share: room for labels, fewer ticks on narrow screens.
let squeezed = 1; // on paper, high plots are lower, so that the answer and the first plots fit one page
function base(width, height, more) {
  return { width, height: Math.max(squeezed * height, Math.min(height, 170)), marginLeft: 54, marginRight: 22, marginTop: 30, marginBottom: 44, ...more };
}

// The ticks' labels are given as text: a format would go through D3's, which drops some of them on log scales.
function logAxis(domain, label) {
  const ticks = logTicks(...domain, 9);
  return [Plot.gridY(ticks, GRID), Plot.axisY(ticks, { text: short, label })];
}

function limitRules(limits) {
  return [
    Plot.ruleY(limits, { y: "ms", stroke: "var(--limit)", strokeDasharray: "5 4" }),
    Plot.text(limits, {
      y: "ms", text: "name", frameAnchor: "left", textAnchor: "start", dx: 6, dy: -8,
      fill: "var(--limit)", stroke: "var(--paper)", strokeWidth: 4,
    }),
  ];
}

const symbols = {
  dot: (color) => `<circle cx="7" cy="7" r="4.5" fill="${color}"/>`,
  ring: (color) => `<circle cx="7" cy="7" r="4" fill="none" stroke="${color}" stroke-width="1.5"/>`,
  cross: (color) => `<path d="M3 3L11 11M11 3L3 11" stroke="${color}" stroke-width="1.7"/>`,
  triangle: (color) => `<path d="M7 2.5L12 11.5H2Z" fill="none" stroke="${color}" stroke-width="1.5"/>`,
  fallen: (color) => `<path d="M2 3H12L7 12Z" fill="${color}"/>`,
  diamond: (color) => `<path d="M7 1L12.5 7L7 13L1.5 7Z" fill="${color}"/>`,
  hollow: (color) => `<path d="M7 1.5L12 7L7 12.5L2 7Z" fill="none" stroke="${color}" stroke-width="1.5"/>`,
  bar: (color) => `<path d="M0 7H14" stroke="${color}" stroke-width="6"/>`,
  line: (color) => `<path d="M0 7H14" stroke="${color}" stroke-width="2"/>`,
  hatched: (color) => `<rect x="1" y="1" width="12" height="12" fill="${color}"/><path d="M1 8L8 1M3 13L13 3M9 13L13 9" stroke="var(--panel)" stroke-width="1.5"/>`,
  frame: (color) => `<rect x="2" y="2" width="10" height="10" rx="2" fill="none" stroke="${color}" stroke-width="2"/>`,
  dotted: (color) => `<path d="M0 7H14" stroke="${color}" stroke-width="1.5" stroke-dasharray="2 3"/>`,
  dashes: (color) => `<path d="M0 7H14" stroke="${color}" stroke-width="1.5" stroke-dasharray="4 3"/>`,
  square: (color) => `<rect x="2" y="2" width="10" height="10" fill="${color}"/>`,
};

// Lines in the colour of the panel over a cell: its figure can be read, also on paper.
function hatching(document) {
  const defs = document.createElementNS("http://www.w3.org/2000/svg", "defs");
  defs.innerHTML = `<pattern id="hatching" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
    <path d="M0 0V7" stroke="var(--panel)" stroke-width="3.5" stroke-opacity="0.75"/></pattern>`;
  return defs;
}

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

// What a run decided is told by the mark and the dashes, so that paper without colours tells it too.
const DECISIONS = [
  ["met", "var(--complete)", "dot", null, "circle"],
  ["violated", "var(--failed)", "cross", null, "times"],
  ["inconclusive", "var(--infeasible)", "ring", "5 2", "circle"],
  ["not trusted", "var(--pruned)", "triangle", "1 3", "triangle"],
];
const SLOW = 1 / 1.2; // of the usual speed: a slow phase, as in search/simulator/replay.py

const draw = {
  certainty({ runs, speeds, silences, certified }, width) {
    const ends = (d) => d.from + d.s;
    const believed = runs.filter((d) => d.role === "recommended" && d.low);
    const rates = [...[...runs, ...certified].map((d) => d.rate), ...believed.flatMap((d) => [d.low, d.high])];
    const log = d3.max(rates) > 4 * d3.min(rates);
    const y = log ? logDomain(rates) : domain(rates);
    const label = `${silences.length ? "seconds, cut at the dotted lines" : "seconds from the first load run on"} →`;
    const x = { label, domain: [0, d3.max([...runs, ...speeds], ends)], ticks: xTicks(width) };
    const band = d3.sort(believed, (d) => d.from);
    if (band.length) band.push({ ...band.at(-1), from: x.domain[1] });
    let last = -Infinity;
    const room = (130 * x.domain[1]) / width; // a label that would run into the one before is left out
    const named = silences.filter((d) => d.at - last > room && ((last = d.at), true));
    const bars = speeds.flatMap((d) => d.speeds.map((speed, index) => ({ x1: d.from + index, x2: d.from + index + 1, speed })));
    const size = width < 500 ? 0.75 : 1;
    const tip = { fill: "var(--panel)" };
    const title = (d) => `${d.confirms ? "confirmation" : "load run"} of trial ${d.trial} (${d.state}): ${d.knobs}\n${short(d.rate)}/s for ${short(d.s)} s: ${d.words}`;
    const marks = DECISIONS.flatMap(([decided, color, , dashes, symbol]) => [false, true].flatMap((confirms) => {
      const own = runs.filter((d) => d.decided === decided && d.confirms === confirms);
      const at = { x: ends, y: "rate", symbol, r: size * (confirms ? 6.5 : 4) };
      return [
        Plot.ruleY(own, { x1: "from", x2: ends, y: "rate", stroke: color, strokeWidth: confirms ? 6 : 2, strokeDasharray: dashes }),
        Plot.dot(own, { ...at, stroke: "var(--paper)", strokeWidth: 6 * size }),
        Plot.dot(own, { ...at, stroke: color, strokeWidth: confirms ? 2.4 : 1.6, fill: decided === "met" ? color : "var(--paper)", title, tip }),
      ];
    }));
    const tried = Plot.plot(base(width, Math.max(280, Math.min(400, width * 0.45)), {
      ariaLabel: "Rate and duration of every load run", x: { ...x, label: bars.length ? null : label }, y: { type: log ? "log" : "linear", domain: y, axis: null },
      marks: [
        ...(log ? logAxis(y, "↑ requests/s") : [Plot.gridY({ ticks: 5, ...GRID }), Plot.axisY({ ticks: 5, tickFormat: short, label: "↑ requests/s" })]),
        Plot.areaY(band, { x: "from", y1: "low", y2: "high", curve: "step-after", fill: "var(--winner)", fillOpacity: 0.14 }),
        Plot.ruleY(certified, { y: "rate", stroke: "var(--winner)", strokeWidth: 1.5 }),
        Plot.ruleX(silences, { x: "at", stroke: "var(--soft)", strokeDasharray: "2 3" }),
        Plot.text(named, { x: "at", text: "name", frameAnchor: "bottom", dy: -6, fill: "var(--soft)", stroke: "var(--paper)", strokeWidth: 4 }),
        ...marks,
        Plot.text(certified, {
          y: "rate", text: "name", frameAnchor: "left", dx: 6, dy: -8, fill: "var(--winner)", stroke: "var(--paper)", strokeWidth: 4,
        }),
      ],
    }));
    const strip = Plot.plot(base(width, 140, {
      ariaLabel: "Speed of the machine", x, y: { label: "↑ machine's speed, 1 is usual", domain: [0, d3.max([1.1, ...bars.map((d) => d.speed)])], ticks: 3 },
      marks: [
        Plot.rectY(bars, { x1: "x1", x2: "x2", y: "speed", fill: (d) => (d.speed < SLOW ? "var(--infeasible)" : "var(--frontier)") }),
        Plot.ruleY([1], { stroke: "var(--ink)", strokeDasharray: "2 3" }),
      ],
    }));
    const entries = DECISIONS.filter(([decided]) => runs.some((d) => d.decided === decided))
      .map(([decided, color, kind]) => [kind, color, decided]);
    if (runs.some((d) => d.confirms)) entries.push(["bar", "var(--soft)", "confirmation"]);
    if (certified.length) entries.push(["line", "var(--winner)", "certified rate"]);
    if (band.length) entries.push(["square", "color-mix(in srgb, var(--winner) 25%, var(--paper))", "capacity believed"]);
    if (bars.length) entries.push(["square", "var(--frontier)", "machine's speed"]);
    if (bars.some((d) => d.speed < SLOW)) entries.push(["square", "var(--infeasible)", "slow"]);
    return [key(entries), tried, ...(bars.length ? [strip] : [])];
  },

  rates({ curves, runs, certified, limits, quantile }, width) {
    const far = 8 * d3.max(limits, (d) => d.ms); // what is beyond is drawn at the edge
    const near = (ms) => Math.min(ms, far);
    const lines = curves.filter((d) => d.ms <= far);
    const all = [...lines, ...runs, ...certified];
    const y = logDomain([...all.map((d) => near(d.ms)), ...certified.map((d) => d.low), ...limits.map((d) => d.ms)]);
    const color = (d) => (d.role ? colorOf(d.role) : "var(--frontier)");
    const say = (d) => `${d.knobs}\n${short(d.rate)}/s, ${quantile} ${short(d.ms)} ms`;
    const tip = { fill: "var(--panel)" };
    const title = (d) => `${d.confirms ? "confirmation" : "load run"} of trial ${d.trial}: ${say(d)}\n${d.words}`;
    const order = (d) => (d.role ? 1 : 0);
    const drawn = d3.sort(runs, order).map((d) => ({ ...d, at: near(d.ms) }));
    const roles = ROLES.filter((role) => [...curves, ...runs].some((d) => d.role === role));
    const entries = roles.map((role) => [curves.some((d) => d.role === role) ? "line" : "dot", colorOf(role), role]);
    if (runs.some((d) => !d.role)) entries.push(["dot", "var(--frontier)", roles.length ? "other trials" : "trials"]);
    entries.push(...DECISIONS.filter(([decided]) => runs.some((d) => d.decided === decided))
      .map(([decided, , kind]) => [kind, "var(--soft)", decided]));
    if (certified.length) entries.push(["diamond", "var(--soft)", "certified"]);
    entries.push(["dashes", "var(--limit)", "limit"]);
    const plot = Plot.plot(base(width, Math.max(300, Math.min(430, width * 0.6)), {
      ariaLabel: `${quantile} over the rate of recommendation and default`,
      x: { label: "requests/s →", domain: domain([0, ...all.map((d) => d.rate)]), ticks: xTicks(width), tickFormat: short },
      y: { type: "log", domain: y, clamp: true, axis: null },
      color: roleColor,
      marks: [
        ...logAxis(y, `↑ ${quantile}, ms`),
        ...limitRules(limits),
        Plot.line(lines, { x: "rate", y: "ms", stroke: "role", strokeWidth: 2, curve: "monotone-x" }),
        ...DECISIONS.map(([decided, , , , symbol]) => Plot.dot(drawn.filter((d) => d.decided === decided), {
          x: "rate", y: "at", symbol, r: (d) => (d.confirms ? 6 : 3.5), stroke: color, strokeWidth: 1.8,
          fill: decided === "met" ? color : "var(--paper)", title, tip,
        })),
        Plot.ruleX(certified, { x: "rate", y1: "low", y2: "high", stroke: "role", strokeWidth: 2 }),
        Plot.dot(certified, {
          x: "rate", y: "ms", r: 7, symbol: "diamond", fill: "role", stroke: "var(--paper)", tip,
          title: (d) => `${d.role}, certified: ${say(d)} (${short(d.low)} to ${short(d.high)})`,
        }),
      ],
    }));
    return [key(entries), plot];
  },

  configurations({ cells }, width) {
    const most = d3.max(cells, (d) => d.rate) || 1;
    const values = (name) => d3.sort(new Set(cells.map((d) => d[name])));
    const rows = values("instances").reverse(), columns = values("batch");
    const at = { x: "batch", y: "instances", inset: 1.5, rx: 3 };
    const fill = (d) => `color-mix(in oklab, var(--winner) ${Math.round((50 * d.rate) / most)}%, var(--panel))`;
    const figure = (d) => (d.how === "at most" ? "≤" : "") + (d.rate >= 1e4 ? `${short(d.rate / 1e3)}k` : short(d.rate));
    const predicted = cells.filter((d) => d.how === "predicted"), best = cells.filter((d) => d.best);
    const title = (d) => `${d.knobs}\n${d.how} ${short(d.rate)}/s${d.best ? ", recommended" : ""}`;
    const height = Math.max(44, Math.min(80, 260 / rows.length)) * rows.length;
    const plot = Plot.plot(base(width, 70 + height, {
      ariaLabel: "Capacity by batch size and instances", marginLeft: 30, marginRight: 4, padding: 0,
      x: { type: "band", domain: columns, label: "maximum batch size →", labelAnchor: "right", tickSize: 0 },
      y: { type: "band", domain: rows, label: "↑ instances", labelAnchor: "top", tickSize: 0 },
      marks: [
        Plot.cell(cells, { ...at, fill, stroke: "var(--rule)" }),
        (index, scales, values, size, context) => hatching(context.document),
        Plot.cell(predicted, { ...at, fill: "url(#hatching)" }),
        Plot.cell(best, { ...at, fill: "none", stroke: "var(--ink)", strokeWidth: 2.5 }),
        Plot.text(cells, { x: "batch", y: "instances", text: figure, fontSize: width < 400 ? 11 : 12.5, fontWeight: (d) => (d.best ? 700 : 400), fill: "var(--ink)" }),
        Plot.tip(cells, Plot.pointer({ x: "batch", y: "instances", title, fill: "var(--panel)" })),
      ],
    }));
    const entries = [["square", "color-mix(in oklab, var(--winner) 50%, var(--panel))", "measured"]];
    if (predicted.length) entries.push(["hatched", "color-mix(in oklab, var(--winner) 50%, var(--panel))", "only predicted"]);
    if (best.length) entries.push(["frame", "var(--ink)", "recommended"]);
    return [key(entries), plot];
  },

  capacity({ loads, unit, log, limits, confirmed }, width) {
    const values = [...loads, ...limits.map((d) => ({ value: d.ms }))].map((d) => d.value).filter((value) => value !== null);
    const y = log ? logDomain(values) : domain(values);
    const x = domain(loads.map((d) => d.rate));
    const marks = DECISIONS.flatMap(([decided, color, , , symbol]) => {
      const own = loads.filter((d) => d.decided === decided).map((d) => ({ ...d, at: d.value ?? y[1] }));
      return Plot.dot(own, {
        x: "rate", y: "at", symbol, r: 4.5, stroke: color, strokeWidth: 1.8, fill: decided === "met" ? color : "var(--paper)", tip: { fill: "var(--panel)" },
        title: (d) => `${d.confirms ? "confirmation" : "probe"}, ${short(d.rate)}/s: ${d.words}\n${unit}: ${d.value === null ? "none" : short(d.value)}`,
      });
    });
    const confirmations = loads.filter((d) => d.confirms).map((d) => ({ ...d, at: d.value ?? y[1] }));
    const onTheRight = confirmed.some((d) => d.rate > (x[0] + x[1]) / 2);
    const plot = Plot.plot(base(width, Math.max(300, Math.min(400, width * 0.5)), {
      ariaLabel: `${unit} over the rate`,
      x: { label: "requests/s →", domain: x, ticks: xTicks(width), tickFormat: short },
      y: { type: log ? "log" : "linear", domain: y, axis: null },
      marks: [
        ...(log ? logAxis(y, `↑ ${unit}`) : [Plot.gridY({ ticks: 5, ...GRID }), Plot.axisY({ ticks: 5, tickFormat: short, label: `↑ ${unit}` })]),
        ...limitRules(limits),
        Plot.ruleX(confirmed, { x: "rate", stroke: "var(--winner)", strokeWidth: 1.5 }),
        Plot.text(confirmed, {
          x: "rate", text: "name", frameAnchor: "bottom", textAnchor: onTheRight ? "end" : "start", dx: onTheRight ? -6 : 6, dy: -8,
          fill: "var(--winner)", stroke: "var(--paper)", strokeWidth: 4,
        }),
        Plot.dot(confirmations, { x: "rate", y: "at", symbol: "diamond", r: 10, stroke: "var(--soft)", strokeWidth: 1.4 }),
        ...marks,
      ],
    }));
    const entries = DECISIONS.filter(([decided]) => loads.some((d) => d.decided === decided)).map(([decided, color, kind]) => [kind, color, decided]);
    if (confirmations.length) entries.push(["hollow", "var(--soft)", "confirmation"]);
    return [key(entries), plot];
  },

  quantiles({ points, roles, ticks: all, limits }, width) {
    const [first, last] = d3.extent(points, (d) => d.nines);
    const place = (tick) => ((tick[0] - first) / (last - first || 1)) * (width - 76);
    const ticks = all.filter((tick, index) => index === all.length - 1 || place(all[index + 1]) - place(tick) > 34);
    const y = logDomain([...points, ...limits].map((d) => d.ms));
    const plot = Plot.plot(base(width, 320, {
      ariaLabel: "Latency quantiles",
      x: { label: "share of requests that were faster →", ticks: ticks.map((d) => d[0]), tickFormat: (d) => new Map(ticks).get(d) },
      y: { type: "log", domain: y, axis: null },
      color: roleColor,
      marks: [
        ...logAxis(y, "↑ ms"),
        ...limitRules(limits),
        Plot.line(points, { x: "nines", y: "ms", stroke: "role", strokeWidth: 2, curve: "monotone-x" }),
        Plot.dot(points, {
          x: "nines", y: "ms", fill: "role", r: points.length > 20 ? 1.8 : 3.5, tip: { fill: "var(--panel)" },
          title: (d) => `${d.label}\n${d.name}: ${short(d.ms)} ms`,
        }),
      ],
    }));
    return [key(roles.map(([role, label]) => ["line", colorOf(role), label])), plot];
  },

  timeline({ bins, end, limits, rated }, width) {
    const limited = bins.some((d) => d.good !== null);
    const rates = domain([...(limited ? [0] : []), ...bins.map((d) => d.rate)]);
    // Each line is broader than those drawn over it: with few requests they are equal, and all are to be seen.
    const lines = [["slowest", "var(--broad)", 7, "bar"], ["p99", "var(--baseline)", 3.2, "line"], ["p50", "var(--winner)", 1.4, "line"]];
    const y = logDomain([...bins.flatMap((d) => [d.p50, d.slowest]), ...limits.map((d) => d.ms)]);
    const failed = bins.filter((d) => d.failures);
    const x = { label: "seconds →", domain: [bins[0].start, end], ticks: xTicks(width) };
    const pointed = (more) => Plot.pointerX({ x: "middle", maxRadius: 60, ...more });
    const title = (d) => `${short(d.start)} s: ${short(d.rate)} requests/s` + (d.good === null ? "" : `, ${short(d.good)}/s in time`) + (d.p50 === null ? "" :
      `\np50 ${short(d.p50)}, p99 ${short(d.p99)}, slowest ${short(d.slowest)} ms`) + (d.failures ? `\n${d.failures} failed` : "");
    const latency = Plot.plot(base(width, 320, {
      ariaLabel: "Latency over time", x: { ...x, label: rated ? null : x.label }, y: { type: "log", domain: y, axis: null },
      marks: [
        ...logAxis(y, "↑ ms"),
        ...lines.flatMap(([name, color, strokeWidth]) => [
          Plot.lineY(bins, { x: "middle", y: name, stroke: color, strokeWidth }),
          Plot.dot(bins, { x: "middle", y: name, fill: color, r: strokeWidth * (bins.length < 3 ? 2 : 0.6) }),
        ]),
        ...limitRules(limits),
        Plot.text(failed, { x: "middle", text: () => "▼", frameAnchor: "top", dy: -10, fill: "var(--failed)" }),
        Plot.ruleX(bins, pointed({ stroke: "var(--soft)", strokeOpacity: 0.5 })),
        Plot.tip(bins, pointed({ y: "slowest", title, fill: "var(--panel)" })),
      ],
    }));
    const steps = bins.flatMap((d) => [{ s: d.start, ...d }, { s: d.end, ...d }]);
    const rate = Plot.plot(base(width, 170, {
      ariaLabel: "Requests due per second", x, y: { label: "↑ requests/s due" + (limited ? ", and answered in time (filled)" : ""), domain: rates, tickFormat: short, ticks: 4 },
      marks: [
        Plot.gridY({ ticks: 4, ...GRID }),
        ...(limited ? [Plot.areaY(steps, { x: "s", y1: 0, y2: "good", fill: "var(--winner)", fillOpacity: 0.25 })] : []),
        Plot.lineY(steps, { x: "s", y: "rate", stroke: "var(--winner)", strokeWidth: 1.8 }),
      ],
    }));
    const entries = lines.toReversed().map(([name, color, , kind]) => [kind, color, name]);
    if (failed.length) entries.push(["fallen", "var(--failed)", "failures"]);
    return [key(entries), latency, ...(rated ? [rate] : [])];
  },

  day({ minutes, limits }, width) {
    const hours = { label: "hours →", domain: [0, minutes.at(-1).hour + 1 / 60], ticks: xTicks(width) };
    const chart = (height, label, y, marks, x = hours) => Plot.plot(base(width, height, {
      ariaLabel: label, x, y, marks: [Plot.gridY({ ticks: 4, ...GRID }), ...marks],
    }));
    const steps = { x: "hour", curve: "step-after", strokeWidth: 1.8 };
    const above = { ...hours, label: null };
    const rate = chart(150, "Traffic", { label: "↑ requests/s", domain: domain(minutes.map((d) => d.rate)), tickFormat: short, ticks: 4 },
      [Plot.lineY(minutes, { x: "hour", y: "rate", stroke: "var(--winner)", strokeWidth: 1.8 })], above);
    const replicas = chart(190, "Replicas", { label: "↑ replicas", zero: true, ticks: 4, tickFormat: "d" }, [
      Plot.lineY(minutes, { ...steps, y: "perfect", stroke: "var(--baseline)" }),
      Plot.lineY(minutes, { ...steps, y: "replicas", stroke: "var(--winner)" }),
    ], above);
    const y = logDomain([...minutes.map((d) => d.ms), ...limits.map((d) => d.ms)]);
    const latency = Plot.plot(base(width, 220, {
      ariaLabel: "Latency", x: hours, y: { type: "log", domain: y, axis: null },
      marks: [
        ...logAxis(y, "↑ ms"),
        Plot.lineY(minutes, { x: "hour", y: "ms", stroke: "var(--winner)", strokeWidth: 1.4 }),
        ...limitRules(limits),
      ],
    }));
    const entries = [["line", "var(--winner)", "with these settings"], ["line", "var(--baseline)", "perfect foresight"]];
    return [key(entries), rate, replicas, latency];
  },

  stages({ bars, stages }, width) {
    const roles = [...new Set(bars.map((d) => d.role))];
    const colors = stages.map((_, index) => `var(--stage-${index + 1})`);
    const plot = Plot.plot(base(width, 62 * roles.length + 60, {
      ariaLabel: "Mean time in each stage", marginLeft: 104, marginTop: 8,
      x: { label: "ms →", ticks: xTicks(width) },
      y: { label: null, domain: roles, padding: 0.25 },
      color: { domain: stages, range: colors },
      marks: [
        Plot.gridX({ ticks: xTicks(width), ...GRID }),
        Plot.barX(bars, Plot.stackX({
          x: "ms", y: "role", fill: "stage", order: stages, inset: 0.5, tip: { fill: "var(--panel)" },
          title: (d) => `${d.role}\n${d.stage}: ${short(d.ms)} ms`,
        })),
      ],
    }));
    return [key(stages.map((stage, index) => ["square", colors[index], stage])), plot];
  },

  replicas({ steps, lines, wanted, widest }, width) {
    const roles = lines.map((d) => d.role);
    const plot = Plot.plot(base(width, 320, {
      ariaLabel: "Cost an hour over the traffic",
      x: { label: "requests/s to serve →", domain: [0, widest], ticks: xTicks(width), tickFormat: short },
      y: { label: "↑ USD an hour", zero: true, ticks: 6 },
      color: roleColor,
      marks: [
        Plot.gridY({ ticks: 6, ...GRID }),
        Plot.ruleX(wanted ? [wanted] : [], { stroke: "var(--soft)", strokeDasharray: "5 4" }),
        ...lines.map((d) => Plot.line([[0, 0], [widest, d.usd]], { stroke: colorOf(d.role), strokeDasharray: "2 3" })),
        ...roles.map((role) => Plot.line(
          steps.filter((d) => d.role === role).flatMap((d) => [{ ...d, x: d.from }, { ...d, x: d.to }]),
          { x: "x", y: "usd", stroke: "role", strokeWidth: 2 },
        )),
        Plot.dot(steps.filter((d) => d.role === roles[0]), {
          x: "to", y: "usd", fill: "role", r: 3.5, tip: { fill: "var(--panel)" },
          title: (d) => `${d.role}\n${d.replicas} replicas: up to ${short(d.to)}/s, $${d.usd.toFixed(3)} an hour`,
        }),
      ],
    }));
    const entries = roles.map((role) => ["line", colorOf(role), role]);
    return [key([...entries, ["dotted", "var(--soft)", "pro rata"]]), plot];
  },
};

const PAPER_WIDTH = 690, HALF_PAPER_WIDTH = 340; // of plots in print: A4 and Letter within usual margins
const paper = matchMedia("print");

function drawAll(printed = paper.matches) {
  squeezed = printed ? 0.72 : 1;
  for (const place of document.querySelectorAll("[data-plot]")) {
    const name = place.dataset.plot;
    const onPaper = place.closest("figure").className ? PAPER_WIDTH : HALF_PAPER_WIDTH;
    const width = printed ? onPaper : Math.max(280, Math.round(place.clientWidth));
    if (place.dataset.width === String(width)) continue;
    place.dataset.width = width;
    place.replaceChildren(...draw[name.split(":")[0]](data[name], width));
    place.dataset.drawn = "yes";
    for (const svg of place.querySelectorAll("svg[aria-label]")) svg.setAttribute("role", "img");
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
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // unknown values come last
    return a.localeCompare(b, "en", { numeric: true });
  };
  headings.forEach((heading, column) => heading.querySelector("button")?.addEventListener("click", () => {
    const down = heading.getAttribute("aria-sort") === "ascending";
    headings.forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows].sort((a, b) => order(value(a, column), value(b, column)) * (down ? -1 : 1));
    body.append(...rows);
  }));
}

// Where a browser gives a file no clipboard, the lines are at least selected.
document.querySelectorAll(".copy").forEach((button) => button.addEventListener("click", async () => {
  const code = button.parentElement.querySelector("code");
  try {
    await navigator.clipboard.writeText(code.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(code);
    button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  }
}));

document.querySelectorAll("table.sortable").forEach(sortable);
drawAll();
new ResizeObserver(() => drawAll()).observe(document.body);

// Paper cannot be unfolded: what is folded is printed open, and folded again afterwards.
const folded = document.querySelectorAll("details.part:not([open])");
function toPaper(printed) {
  for (const part of folded) part.open = printed;
  drawAll(printed);
}
paper.addEventListener("change", () => toPaper(paper.matches));
addEventListener("beforeprint", () => toPaper(true));
addEventListener("afterprint", () => toPaper(false));
