"use strict";
// Unpacks the page's data: deflated byte planes in base64. Mirrors `pack` in graphcl/reporting/page.py.

async function inflate(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function unpack(packed) {
  const planes = await inflate(packed.data);
  const width = Number(packed.type.slice(1));
  const n = planes.length / width, bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < width; plane++)
    for (let i = 0; i < n; i++) bytes[i * width + plane] = planes[plane * n + i];
  const kinds = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array };
  return new kinds[packed.type](bytes.buffer);
}

// Ten hues that colour-blind readers can tell apart; further ones are a golden angle apart.
const HUES = ["#3b7dd8", "#e07b27", "#2f9e6e", "#d64562", "#8e63ce", "#b38600", "#1fa3b8", "#c65aa5",
  "#7d8a2e", "#8d6e5a"];
const UNKNOWN = [140, 145, 150];

function categoryColour(number) {
  if (number < HUES.length) {
    const value = parseInt(HUES[number].slice(1), 16);
    return [value >> 16, (value >> 8) & 255, value & 255];
  }
  const hue = (number * 137.508) % 360, light = [0.52, 0.64, 0.42][number % 3];
  const channel = (shift) => {
    const k = (shift + hue / 30) % 12;
    return Math.round(255 * (light - 0.55 * Math.min(light, 1 - light) *
      Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [channel(0), channel(8), channel(4)];
}

const RAMP = [[74, 52, 140], [48, 104, 160], [32, 148, 140], [98, 190, 88], [236, 196, 40]];

function rampColour(share) {
  const at = Math.max(0, Math.min(1, share)) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2), part = at - low;
  return RAMP[low].map((value, i) => Math.round(value + part * (RAMP[low + 1][i] - value)));
}

const css = (colour) => `rgb(${colour.join(",")})`;
