"use strict";
// The map of embeddings: colours, hover, selection, neighbours, keyboard and touch. Every text that
// comes from the user enters the page through textContent, never as markup.

const at = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

async function start() {
  const data = JSON.parse(at("data").textContent);
  colourBars();
  const [places, ids, steps, cosines] = await Promise.all([
    unpack(data.places), inflate(data.ids), unpack(data.neighbours), unpack(data.cosines)]);
  const names = JSON.parse(new TextDecoder().decode(ids));
  const channels = await Promise.all(data.channels.map(async (channel) => {
    if (channel.kind === "text")
      return { ...channel, values: JSON.parse(new TextDecoder().decode(await inflate(channel.values))) };
    return { ...channel, values: await unpack(channel.values) };
  }));
  const colours = channels.filter((channel) => channel.kind !== "text");
  const state = { channel: colours[0], only: -1, hover: -1, chosen: -1 };
  const canvas = at("points"), k = data.k;
  const scatter = new Scatter(canvas, places, data.view, drawMarks);
  const neighbours = (i) => Array.from({ length: k }, (_, j) => {
    const step = steps[i * k + j];
    return { node: i + (step & 1 ? -(step + 1) / 2 : step / 2), cosine: cosines[i * k + j] / 250 };
  });

  // Colours ------------------------------------------------------------------------------------
  const numberOf = (channel, i) => Number.isNaN(channel.values[i]) ? null : channel.values[i];
  function shownNumber(channel, value) {
    if (channel.kind === "date") return new Date(Math.max(-6e13, Math.min(6e13, value * 864e5))).toISOString().slice(0, 10);
    return value.toLocaleString("en", { maximumSignificantDigits: 7 }) + channel.unit;
  }
  function colourOf(channel, i) {
    if (channel.kind === "category")
      return channel.values[i] < channel.names.length ? categoryColour(channel.values[i]) : UNKNOWN;
    const value = numberOf(channel, i);
    if (value === null) return UNKNOWN;
    const place = channel.log ? Math.log1p : (number) => number;
    const low = place(channel.low), high = place(channel.high);
    return rampColour(high > low ? (place(value) - low) / (high - low) : 0.5);
  }
  function textOf(channel, i) { // empty where there is nothing
    if (channel.kind === "text") return channel.values[i];
    if (channel.kind === "category") return channel.names[channel.values[i]] ?? "";
    const value = numberOf(channel, i);
    return value === null ? "" : shownNumber(channel, value);
  }
  function paint() {
    const { channel, only } = state, painted = new Uint8Array(4 * names.length);
    const solid = names.length > 50000 ? 190 : 225;
    const table = new Map();
    for (let i = 0; i < names.length; i++) {
      const value = channel.values[i];
      let colour = table.get(value);
      if (!colour) table.set(value, colour = colourOf(channel, i));
      painted[4 * i] = colour[0]; painted[4 * i + 1] = colour[1]; painted[4 * i + 2] = colour[2];
      painted[4 * i + 3] = only < 0 || value === only ? solid : 14;
    }
    scatter.paint(painted);
  }
  function drawLegend() {
    const { channel } = state, legend = at("legend");
    legend.replaceChildren();
    if (channel.kind !== "category") {
      const ramp = element("i");
      ramp.style.background = `linear-gradient(90deg, ${RAMP.map(css).join(",")})`;
      const end = (value) => shownNumber(channel, channel.kind === "date" ? value : Number(value.toPrecision(3)));
      legend.append(element("div", { className: "ramp" }, end(channel.low), ramp,
        `${end(channel.high)}${channel.log ? " (log scale)" : ""}; grey: none`));
      return;
    }
    channel.names.forEach((name, number) => {
      const swatch = element("span", { className: "swatch" });
      swatch.style.background = css(categoryColour(number));
      const entry = element("button", { type: "button" }, swatch, name);
      entry.setAttribute("aria-pressed", state.only === number);
      entry.addEventListener("click", () => {
        state.only = state.only === number ? -1 : number;
        for (const [other, one] of [...legend.children].entries())
          one.setAttribute("aria-pressed", state.only === other);
        paint();
      });
      legend.append(entry);
    });
  }
  const select = at("colour");
  colours.forEach((channel, number) => select.append(element("option", { value: number }, channel.title)));
  select.addEventListener("change", () => {
    state.channel = colours[Number(select.value)];
    state.only = -1;
    drawLegend();
    paint();
    showChosen();
  });

  // Marks above the points -----------------------------------------------------------------------
  function drawMarks() {
    const marks = at("marks"), ratio = canvas.width / canvas.clientWidth;
    if (marks.width !== canvas.width || marks.height !== canvas.height) {
      marks.width = canvas.width; marks.height = canvas.height;
    }
    const pen = marks.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    const ink = getComputedStyle(document.body).color;
    const ring = (i, radius, width) => {
      const [x, y] = scatter.toScreen(i);
      pen.beginPath(); pen.arc(x, y, radius, 0, 7);
      pen.fillStyle = css(colourOf(state.channel, i)); pen.fill();
      pen.lineWidth = width; pen.strokeStyle = ink; pen.stroke();
    };
    const size = scatter.pointSize / 2;
    if (state.chosen >= 0) {
      const near = neighbours(state.chosen), [x, y] = scatter.toScreen(state.chosen);
      pen.strokeStyle = ink; pen.lineWidth = 1; pen.globalAlpha = 0.45;
      for (const { node } of near) {
        pen.beginPath(); pen.moveTo(x, y); pen.lineTo(...scatter.toScreen(node)); pen.stroke();
      }
      pen.globalAlpha = 1;
      for (const { node } of near) ring(node, size + 2, 1.25);
      ring(state.chosen, size + 4.5, 2.5);
    }
    if (state.hover >= 0) ring(state.hover, size + 3, 2);
  }

  function hover(i, x, y) {
    const tip = at("tip");
    if (i !== state.hover) { state.hover = i; drawMarks(); }
    tip.hidden = i < 0;
    if (i < 0) return;
    const lines = [element("strong", {}, names[i])];
    for (const channel of channels.slice(0, 6)) {
      const text = textOf(channel, i);
      if (text) lines.push(element("div", {}, `${channel.title}: ${text}`));
    }
    tip.replaceChildren(...lines);
    const wide = canvas.clientWidth, left = x + 16 + tip.offsetWidth > wide ? x - 16 - tip.offsetWidth : x + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, Math.min(y + 12, canvas.clientHeight - tip.offsetHeight - 4))}px`;
  }

  // The chosen node ------------------------------------------------------------------------------
  function choose(i, centre = false) {
    state.chosen = i;
    if (centre && i >= 0) scatter.moveTo(i);
    drawMarks();
    showChosen();
  }
  function showChosen() {
    const i = state.chosen, panel = at("chosen");
    if (i < 0) panel.replaceChildren(at("invitation").content.cloneNode(true));
    else panel.replaceChildren(...details(i, (node) => choose(node, true)));
  }
  // All that is known of a node; `go` is called with a neighbour that is pressed.
  function details(i, go) {
    const list = element("ol", { className: "near" });
    for (const { node, cosine } of neighbours(i)) {
      const swatch = element("span", { className: "swatch" });
      swatch.style.background = css(colourOf(state.channel, node));
      const entry = element("button", { type: "button", title: names[node] }, swatch,
        element("span", {}, names[node]), element("small", {}, cosine.toFixed(2)));
      entry.addEventListener("click", () => go(node));
      list.append(element("li", {}, entry));
    }
    const told = channels.map((channel) => [channel.title, textOf(channel, i)]).filter(([, text]) => text);
    const facts = element("table", { className: "facts" }, element("tbody", {}, ...told.map(([title, text]) =>
      element("tr", {}, element("th", { scope: "row" }, title), element("td", {}, text)))));
    return [element("h3", {}, names[i]), facts,
      element("p", { className: "hint", style: "margin:14px 0 0" }, "Most similar nodes (cosine)"), list];
  }
  at("search").addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = at("find").value, low = wanted.toLowerCase();
    let found = names.indexOf(wanted);
    if (found < 0 && low) found = names.findIndex((name) => name.toLowerCase().startsWith(low));
    if (found < 0 && low) found = names.findIndex((name) => name.toLowerCase().includes(low));
    at("missing").textContent = found < 0 && low ? "no such node on the map" : "";
    if (found >= 0) { scatter.zoom = Math.max(scatter.zoom, 4); choose(found, true); }
  });

  // Pointer, touch and keys ------------------------------------------------------------------------
  const held = new Map();
  let moved = 0;
  const local = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const spread = () => {
    const [[x1, y1], [x2, y2]] = [...held.values()];
    return [Math.hypot(x1 - x2, y1 - y2), (x1 + x2) / 2, (y1 + y2) / 2];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, local(event));
    moved = held.size > 1 ? 99 : 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = local(event), before = held.get(event.pointerId);
    if (!before) { hover(scatter.nearest(x, y, 12), x, y); return; }
    moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
    if (held.size === 2) {
      const [apart, midX, midY] = spread();
      held.set(event.pointerId, [x, y]);
      const [nowApart, nowX, nowY] = spread();
      scatter.pan(nowX - midX, nowY - midY);
      scatter.zoomAt(nowApart / Math.max(apart, 1), nowX, nowY);
      return;
    }
    held.set(event.pointerId, [x, y]);
    if (moved > 4) { hover(-1); scatter.pan(x - before[0], y - before[1]); }
  });
  const release = (event) => {
    const [x, y] = local(event);
    if (held.delete(event.pointerId) && event.type === "pointerup" && moved <= 4)
      choose(scatter.nearest(x, y, event.pointerType === "touch" ? 24 : 12));
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => hover(-1));
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    scatter.zoomAt(Math.exp(-Math.max(-240, Math.min(240, event.deltaY * lines)) * 0.0022), ...local(event));
  }, { passive: false });
  const middle = () => [canvas.clientWidth / 2, canvas.clientHeight / 2];
  const actions = {
    "+": () => scatter.zoomAt(1.5, ...middle()), "=": () => scatter.zoomAt(1.5, ...middle()),
    "-": () => scatter.zoomAt(1 / 1.5, ...middle()), 0: () => scatter.home(), Escape: () => choose(-1),
    ArrowLeft: () => scatter.pan(50, 0), ArrowRight: () => scatter.pan(-50, 0),
    ArrowUp: () => scatter.pan(0, 50), ArrowDown: () => scatter.pan(0, -50),
    Enter: () => choose(scatter.nearest(...middle(), 400)),
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
  for (const [id, key] of [["closer", "+"], ["wider", "-"], ["whole", "0"]])
    at(id).addEventListener("click", actions[key]);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawMarks);

  drawLegend();
  paint();
  scatter.measure();
  showChosen();
  window.graphclMap = { scatter, names, channels, choose, state, neighbours };
  if (at("list")) {
    const ranked = await unpack(data.ranked);
    window.graphclList = startList({ names, channels, ranked, textOf, numberOf, details, choose });
  }
  document.body.dataset.map = scatter.gl ? "webgl" : "plain";
}

function colourBars() {
  for (const bar of document.querySelectorAll("[data-colour]"))
    bar.style.background = css(categoryColour(Number(bar.dataset.colour)));
}

start().catch((error) => {
  at("chosen").textContent = `The map cannot be drawn in this browser: ${error.message}`;
  document.body.dataset.map = "failed";
  console.error(error);
});
