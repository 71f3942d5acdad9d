"use strict";
// A scatter plot of many points, drawn by WebGL or, without it, on a plain canvas. It finds the
// point under the pointer and moves the view; it does not know about graphs.

const VERTEX = `
attribute vec2 place; attribute vec4 colour;
uniform vec2 centre, factor; uniform mediump float size; varying vec4 shade;
void main() {
  gl_Position = vec4((place - centre) * factor, 0.0, 1.0);
  gl_PointSize = size; shade = colour;
}`;
const FRAGMENT = `
precision mediump float; varying vec4 shade; uniform mediump float size;
void main() {
  float edge = (0.5 - length(gl_PointCoord - 0.5)) * size;
  float cover = size < 3.0 ? 1.0 : clamp(edge + 0.5, 0.0, 1.0);
  gl_FragColor = vec4(shade.rgb, 1.0) * shade.a * cover;
}`;
const CELLS = 256;
const FRAME = 25; // milliseconds per frame while the view moves; a slower device draws fewer points
const REST = 180; // milliseconds without motion after which all points are drawn again

class Scatter {
  // places: Uint16Array of x, y pairs. view: the initial centre and zoom. onDraw is called after
  // every frame.
  constructor(canvas, places, view, onDraw) {
    this.canvas = canvas;
    this.places = places;
    this.n = places.length / 2;
    this.view = view;
    this.onDraw = onDraw;
    this.colours = new Uint8Array(4 * this.n).fill(255);
    this.home();
    this.gl = canvas.getContext("webgl", { antialias: false, premultipliedAlpha: true });
    if (this.gl) this.#prepare();
    else this.flat = canvas.getContext("2d");
    canvas.addEventListener("webglcontextlost", (event) => event.preventDefault());
    canvas.addEventListener("webglcontextrestored", () => { this.#prepare(); this.paint(this.colours); });
    this.#index();
    new ResizeObserver(() => this.redraw()).observe(canvas);
    this.share = 1;
  }

  // Measures how long drawing all points takes. If that is too slow for motion, only every second,
  // fourth, … point is drawn, larger, while the view moves, and all of them once it rests.
  measure() {
    if (!this.gl) return;
    for (const _ of [1, 2]) { // the first draw also compiles
      const began = performance.now();
      this.draw(true);
      this.gl.readPixels(0, 0, 1, 1, this.gl.RGBA, this.gl.UNSIGNED_BYTE, new Uint8Array(4));
      this.cost = performance.now() - began;
    }
    while (this.share < 16 && this.cost / this.share > FRAME) this.share *= 2;
  }

  #prepare() {
    const gl = this.gl, program = gl.createProgram();
    for (const [kind, text] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
      const shader = gl.createShader(kind);
      gl.shaderSource(shader, text);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(gl.getProgramInfoLog(program));
    gl.useProgram(program);
    const attribute = (name, width, type, data) => {
      const buffer = gl.createBuffer(), at = gl.getAttribLocation(program, name);
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.bufferData(gl.ARRAY_BUFFER, data, gl.DYNAMIC_DRAW);
      gl.enableVertexAttribArray(at);
      const every = (share) => { // places and colours both take four bytes per point
        gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
        gl.vertexAttribPointer(at, width, type, true, 4 * share, 0);
      };
      return { buffer, every };
    };
    this.attributes = {
      place: attribute("place", 2, gl.UNSIGNED_SHORT, this.places),
      colour: attribute("colour", 4, gl.UNSIGNED_BYTE, this.colours),
    };
    this.uniforms = Object.fromEntries(["centre", "factor", "size"].map(
      (name) => [name, gl.getUniformLocation(program, name)]));
    gl.enable(gl.BLEND);
    gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  }

  // Sorts points into the cells of a grid, so that a search under the pointer looks at few points.
  #index() {
    const cell = new Uint32Array(this.n), starts = new Uint32Array(CELLS * CELLS + 1);
    for (let i = 0; i < this.n; i++) {
      cell[i] = (this.places[2 * i + 1] >> 8) * CELLS + (this.places[2 * i] >> 8);
      starts[cell[i] + 1]++;
    }
    for (let c = 0; c < CELLS * CELLS; c++) starts[c + 1] += starts[c];
    const next = starts.slice(), members = new Uint32Array(this.n);
    for (let i = 0; i < this.n; i++) members[next[cell[i]]++] = i;
    this.starts = starts;
    this.members = members;
  }

  home() {
    [this.x, this.y, this.zoom] = this.view;
    if (this.uniforms || this.flat) this.redraw();
  }

  paint(colours) {
    this.colours = colours;
    if (this.gl) {
      this.gl.bindBuffer(this.gl.ARRAY_BUFFER, this.attributes.colour.buffer);
      this.gl.bufferData(this.gl.ARRAY_BUFFER, colours, this.gl.DYNAMIC_DRAW);
    }
    this.redraw();
  }

  redraw(moving = false) {
    this.moving = moving && this.share > 1;
    clearTimeout(this.rest);
    if (this.moving) this.rest = setTimeout(() => this.redraw(), REST);
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => { this.waiting = false; this.draw(!this.moving); });
  }

  // CSS pixels per unit of the map: its square fills most of the smaller side at zoom 1.
  get pixels() { return 0.92 * Math.min(this.canvas.clientWidth, this.canvas.clientHeight) * this.zoom; }

  get pointSize() {
    const area = this.canvas.clientWidth * this.canvas.clientHeight;
    const base = Math.max(1.6, Math.min(7, 0.55 * Math.sqrt(area / this.n)));
    return Math.min(16, base * Math.pow(this.zoom / this.view[2], 0.45));
  }

  // Gives the canvas the resolution of the screen; returns pixels per CSS pixel.
  #fit() {
    const ratio = Math.min(window.devicePixelRatio || 1, 2), canvas = this.canvas;
    const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    return ratio;
  }

  draw(all = true) {
    const ratio = this.#fit(), canvas = this.canvas, { width, height } = canvas;
    if (!width || !height) return;
    if (this.gl) {
      const share = all ? 1 : this.share;
      for (const attribute of Object.values(this.attributes)) attribute.every(share);
      const gl = this.gl, factor = 2 * this.pixels;
      gl.viewport(0, 0, width, height);
      gl.clearColor(0, 0, 0, 0);
      gl.clear(gl.COLOR_BUFFER_BIT);
      gl.uniform2f(this.uniforms.centre, this.x, this.y);
      gl.uniform2f(this.uniforms.factor, factor / canvas.clientWidth, factor / canvas.clientHeight);
      gl.uniform1f(this.uniforms.size, this.pointSize * ratio * Math.pow(share, 0.3));
      gl.drawArrays(gl.POINTS, 0, Math.floor(this.n / share));
    } else this.#drawFlat(ratio, width, height);
    this.onDraw();
  }

  #drawFlat(ratio, width, height) {
    const size = Math.max(1, this.pointSize * ratio * 0.85), c = this.colours;
    this.flat.clearRect(0, 0, width, height);
    for (let i = 0; i < this.n; i++) {
      const [x, y] = this.toScreen(i);
      if (x < 0 || y < 0 || x * ratio > width || y * ratio > height) continue;
      this.flat.fillStyle = `rgba(${c[4 * i]},${c[4 * i + 1]},${c[4 * i + 2]},${c[4 * i + 3] / 255})`;
      this.flat.fillRect(x * ratio - size / 2, y * ratio - size / 2, size, size);
    }
  }

  toScreen(i) {
    return [
      this.canvas.clientWidth / 2 + (this.places[2 * i] / 65535 - this.x) * this.pixels,
      this.canvas.clientHeight / 2 - (this.places[2 * i + 1] / 65535 - this.y) * this.pixels,
    ];
  }

  toMap(x, y) {
    return [
      this.x + (x - this.canvas.clientWidth / 2) / this.pixels,
      this.y - (y - this.canvas.clientHeight / 2) / this.pixels,
    ];
  }

  // The point nearest to a place on screen, within a radius in CSS pixels; -1 for none.
  nearest(x, y, radius) {
    const [mapX, mapY] = this.toMap(x, y), reach = radius / this.pixels;
    const cell = (value) => Math.max(0, Math.min(CELLS - 1, Math.floor(value * 65535 / CELLS)));
    let best = -1, least = reach * reach;
    for (let row = cell(mapY - reach); row <= cell(mapY + reach); row++) {
      const from = this.starts[row * CELLS + cell(mapX - reach)];
      const to = this.starts[row * CELLS + cell(mapX + reach) + 1];
      for (let m = from; m < to; m++) {
        const i = this.members[m];
        const dx = this.places[2 * i] / 65535 - mapX, dy = this.places[2 * i + 1] / 65535 - mapY;
        if (dx * dx + dy * dy < least) { least = dx * dx + dy * dy; best = i; }
      }
    }
    return best;
  }

  pan(dx, dy) {
    this.x = Math.max(0, Math.min(1, this.x - dx / this.pixels));
    this.y = Math.max(0, Math.min(1, this.y + dy / this.pixels));
    this.redraw(true);
  }

  // Zooms so that the place under (x, y) stays where it is.
  zoomAt(factor, x, y) {
    const [mapX, mapY] = this.toMap(x, y);
    this.zoom = Math.max(0.5, Math.min(2000, this.zoom * factor));
    const [nowX, nowY] = this.toMap(x, y);
    this.x += mapX - nowX;
    this.y += mapY - nowY;
    this.pan(0, 0);
  }

  moveTo(i) {
    this.x = this.places[2 * i] / 65535;
    this.y = this.places[2 * i + 1] / 65535;
    this.redraw();
  }
}
