"use strict";
// The list of nodes: ranked ones first, searched, sorted, shown in pages; and the dialog on a node.

const LISTED = 25; // rows that are shown at first, and at each press of "Show more"

function startList({ names, channels, ranked, textOf, numberOf, details, choose }) {
  const table = at("list"), body = table.tBodies[0], dialog = at("node"), n = names.length;
  const rank = new Uint32Array(n).fill(n);
  ranked.forEach((node, place) => { rank[node] = place; });
  const first = Uint32Array.from({ length: n }, (_, i) => i).sort((a, b) => rank[a] - rank[b] || order(names[a], names[b]));
  const state = { nodes: first, shown: LISTED, by: -2, down: false };

  function order(a, b) { return a < b ? -1 : a > b ? 1 : 0; }
  function cellKey(by) { // what a column is sorted by; nothing comes last, whatever the direction
    if (by === -1) return (i) => names[i];
    const channel = channels[by];
    if (channel.kind === "number" || channel.kind === "date") return (i) => numberOf(channel, i);
    return (i) => textOf(channel, i) || null;
  }
  function sought() {
    const text = at("sought").value.trim().toLowerCase();
    if (!text) return null;
    const tests = channels.flatMap((channel) => {
      if (channel.kind === "text") return [(i) => channel.values[i].toLowerCase().includes(text)];
      if (channel.kind !== "category") return [];
      const hits = new Set(channel.names.flatMap((name, code) => name.toLowerCase().includes(text) ? [code] : []));
      return hits.size ? [(i) => hits.has(channel.values[i])] : [];
    });
    return (i) => names[i].toLowerCase().includes(text) || tests.some((test) => test(i));
  }
  function sift() {
    const fits = sought();
    state.nodes = fits ? first.filter(fits) : first.slice();
    if (state.by > -2) {
      const key = cellKey(state.by), way = state.down ? -1 : 1;
      const keys = new Map(Array.from(state.nodes, (i) => [i, key(i)]));
      state.nodes = Uint32Array.from(state.nodes).sort((a, b) => {
        const x = keys.get(a), y = keys.get(b);
        return x === null || y === null ? (x === null) - (y === null) : way * order(x, y);
      });
    }
    state.shown = LISTED;
    draw();
  }
  function row(i) {
    const name = element("button", { type: "button", className: "id" }, names[i]);
    const line = element("tr", {}, element("th", { scope: "row" }, name),
      ...channels.map((channel) => element("td", { className: channel.title === "why" ? "why" : channel.kind }, element("div", {}, textOf(channel, i)))));
    name.setAttribute("aria-haspopup", "dialog");
    line.addEventListener("click", () => open(i, name));
    return line;
  }
  function draw() {
    const shown = Math.min(state.shown, state.nodes.length);
    body.replaceChildren(...Array.from(state.nodes.subarray(0, shown), row));
    at("sifted").textContent = `${shown.toLocaleString("en")} of ${state.nodes.length.toLocaleString("en")} shown`;
    at("more").hidden = shown === state.nodes.length;
  }
  function drawHead() {
    const heads = ["id", ...channels.map((channel) => channel.title)].map((title, place) => {
      const by = place - 1, head = element("th", { scope: "col" });
      const press = element("button", { type: "button" }, title);
      if (state.by === by) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      press.addEventListener("click", () => {
        const number = by >= 0 && channels[by].kind === "number"; // the largest first
        state.down = state.by === by ? !state.down : number;
        state.by = by;
        drawHead();
        sift();
        table.tHead.rows[0].cells[place].firstChild.focus();
      });
      head.append(press);
      return head;
    });
    table.tHead.rows[0].replaceChildren(...heads);
  }

  // The dialog on a node -----------------------------------------------------------------------
  function fill(i) {
    const close = element("button", { type: "button" }, "Close");
    close.addEventListener("click", () => dialog.close());
    const onMap = element("button", { type: "button" }, "Show on the map");
    onMap.addEventListener("click", () => { dialog.close(); choose(i, true); at("points").focus(); });
    dialog.replaceChildren(...details(i, fill), element("p", { className: "controls" }, onMap, close));
    dialog.setAttribute("aria-label", names[i]);
    dialog.scrollTop = 0;
    close.focus();
  }
  function open(i) {
    if (!dialog.open) dialog.showModal();
    fill(i);
  }
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  for (const press of document.querySelectorAll("[data-node]")) {
    const i = names.indexOf(press.dataset.node);
    if (i >= 0) press.addEventListener("click", () => open(i));
    else press.disabled = true; // a sample does not have it
  }
  let waiting;
  at("sought").addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(sift, 120); });
  at("sift").addEventListener("submit", (event) => { event.preventDefault(); sift(); });
  at("more").addEventListener("click", () => {
    const from = state.shown;
    state.shown += LISTED;
    draw();
    body.rows[from].querySelector("button").focus();
  });
  drawHead();
  draw();
  return { state, open };
}
