"use strict";
// Embeds a new node through the service and shows it on the map, between the nodes that it is most
// similar to. Texts enter the page through textContent alone.

function newFeatures(text, number) {
  const parts = text.split(/[\s,;]+/).filter((part) => part);
  if (parts.some((part) => part.includes(":"))) {
    const some = {};
    for (const part of parts) {
      const [column, value] = part.split(":");
      some[column.trim()] = Number(value);
    }
    return some;
  }
  if (parts.length !== number) throw new Error(`${number} features are needed; there are ${parts.length}`);
  return parts.map(Number);
}

async function embedNew(event) {
  event.preventDefault();
  const said = at("new-said"), list = at("new-near"), map = window.graphclMap;
  list.replaceChildren();
  said.textContent = "…";
  try {
    const number = Number(event.target.querySelector("button").dataset.features);
    const node = {
      features: newFeatures(at("new-features").value, number),
      neighbors: at("new-neighbours").value.split(",").map((name) => name.trim()).filter((name) => name),
    };
    const response = await fetch("/v1/neighbors", {
      method: "POST", headers: { "content-type": "application/json" },
      body: JSON.stringify({ new: [node], k: 10 }),
    });
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    showNew(map, answer.nodes[0].neighbors);
    said.textContent = "Most similar nodes (cosine):";
  } catch (error) {
    said.textContent = error.message;
    document.body.dataset.fresh = "failed";
  }
}

function showNew(map, near) {
  const rows = new Map(map.names.map((name, row) => [name, row])), list = at("new-near");
  let x = 0, y = 0, total = 0;
  for (const { id, cosine, label } of near) {
    const row = rows.get(String(id));
    list.append(element("li", {}, `${id} ${cosine.toFixed(3)}${label === undefined ? "" : ` ${label}`}`));
    if (row === undefined) continue;
    const weight = Math.max(cosine, 0) ** 8 + 1e-9;
    x += weight * map.scatter.places[2 * row] / 65535;
    y += weight * map.scatter.places[2 * row + 1] / 65535;
    total += weight;
  }
  if (!total) { document.body.dataset.fresh = "off the map"; return; }
  map.fresh = [x / total, y / total];
  [map.scatter.x, map.scatter.y] = map.fresh;
  map.scatter.redraw();
  document.body.dataset.fresh = "shown";
}

function drawFresh(map) {
  const over = at("fresh"), canvas = map.scatter.canvas, ratio = canvas.width / canvas.clientWidth;
  if (over.width !== canvas.width || over.height !== canvas.height) {
    over.width = canvas.width; over.height = canvas.height;
  }
  const pen = over.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
  if (!map.fresh) return;
  const { scatter } = map;
  const x = canvas.clientWidth / 2 + (map.fresh[0] - scatter.x) * scatter.pixels;
  const y = canvas.clientHeight / 2 - (map.fresh[1] - scatter.y) * scatter.pixels;
  pen.strokeStyle = pen.fillStyle = "#d6262f";
  pen.lineWidth = 2.5;
  pen.beginPath(); pen.arc(x, y, 9, 0, 7); pen.stroke();
  pen.beginPath(); pen.arc(x, y, 3.5, 0, 7); pen.fill();
}

function startLive() {
  const map = window.graphclMap;
  if (!map) { setTimeout(startLive, 50); return; }
  at("marks").after(element("canvas", { id: "fresh", ariaHidden: "true" }));
  const before = map.scatter.onDraw;
  map.scatter.onDraw = () => { before(); drawFresh(map); };
  at("new").addEventListener("submit", embedNew);
  document.body.dataset.live = "ready";
}

startLive();
