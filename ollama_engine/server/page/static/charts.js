"use strict";
// Two pictures: the cells of the cache as a grid, and the latest steps as bars.

function canvasOf(id) {
  // The context, scaled so that one unit is a pixel of the page.
  const canvas = document.getElementById(id);
  const scale = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { canvas, context, width, height };
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function drawCells({ used, shared, free }) {
  // One square stands for as many cells as it takes to fill the picture; shared ones first, then other used ones.
  const { canvas, context, width, height } = canvasOf("cells");
  const all = used + free;
  if (!all || !width) return;
  let size = 14;
  while (size > 4 && Math.floor(width / size) * Math.floor(height / size) < all) size -= 1;
  const columns = Math.floor(width / size);
  const squares = Math.min(all, columns * Math.floor(height / size));
  const per = all / squares;
  const kinds = { shared: colour("shared"), used: colour("used"), free: colour("free") };
  const inShared = shared ? Math.max(1, Math.round(shared / per)) : 0;
  const inUsed = used ? Math.max(1, Math.round(used / per)) : 0;
  for (let i = 0; i < squares; i += 1) {
    context.fillStyle = i < inShared ? kinds.shared : i < inUsed ? kinds.used : kinds.free;
    context.fillRect((i % columns) * size + 1, Math.floor(i / columns) * size + 1, size - 1, size - 1);
  }
  canvas.setAttribute("aria-label", `Cells of the cache: ${used} used, of these ${shared} shared, ${free} free`);
}

function drawSteps(steps) {
  const { canvas, context, width, height } = canvasOf("steps");
  if (!steps.length || !width) return "";
  const bar = 3;
  const shown = steps.slice(-Math.floor(width / bar));
  const longest = Math.max(...shown.map((step) => step.seconds));
  const [decode, prompt] = [colour("decode"), colour("prompt")];
  shown.forEach((step, i) => {
    const tall = Math.max(1, (step.seconds / longest) * (height - 4));
    const tokens = step.prompt + step.completion || 1;
    const ofPrompt = tall * (step.prompt / tokens);
    context.fillStyle = decode;
    context.fillRect(i * bar, height - tall, bar - 1, tall - ofPrompt);
    context.fillStyle = prompt;
    context.fillRect(i * bar, height - ofPrompt, bar - 1, ofPrompt);
  });
  const note = `tallest ${(longest * 1000).toFixed(longest < 0.01 ? 2 : 0)} ms`;
  canvas.setAttribute("aria-label", `The latest ${shown.length} steps, ${note}`);
  return note;
}
