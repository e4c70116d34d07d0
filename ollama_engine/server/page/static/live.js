"use strict";
// The engine's live view: asks /page/live while it can be seen, and draws what has changed.

const EVERY = 400;
const MOST_STEPS = 600;
const seen = new Map();

function rateOf(model, request, now) {
  // Tokens/s of one request between two looks at it.
  const key = `${model} ${request.id}`;
  const before = seen.get(key);
  if (!before || now - before.at > 900) {
    const rate = before ? ((request.completion_tokens - before.tokens) / (now - before.at)) * 1000 : null;
    seen.set(key, { at: now, tokens: request.completion_tokens, rate });
    return rate;
  }
  return before.rate;
}

// A request's row stays the same element while the request lives: a button that is replaced takes no click.
const rows = new Map();
const COLUMNS = 7;

async function steer(model, id, method, body) {
  const path = `/slots/${id}?model=${encodeURIComponent(model)}`;
  try {
    const answer = await ask(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    if (!answer.ok) throw new Error(await errorOf(answer));
    say("");
  } catch (error) {
    say(`Request ${id} goes on as it was: ${error.message}`, true);
  }
}

function button(text, title, act) {
  const made = element("button", "steer", text);
  made.type = "button";
  made.title = title;
  made.setAttribute("aria-label", title);
  made.addEventListener("click", act);
  return made;
}

function newRow(model, id) {
  const row = element("tr");
  for (let column = 0; column < COLUMNS; column++) row.append(element("td"));
  const change = (by) => () => steer(model, id, "PATCH", { priority: Number(row.dataset.priority) + by });
  const steering = element("td");
  steering.append(
    button("−", `Lower the priority of request ${id}`, change(-1)), element("span", "priority"),
    button("+", `Raise the priority of request ${id}`, change(1)),
    button("×", `End request ${id}`, () => steer(model, id, "DELETE")),
  );
  row.append(steering);
  return row;
}

function showRequests(model, now) {
  const shown = model.requests.map((request) => {
    const rate = rateOf(model.name, request, now);
    const texts = [
      request.id, request.state, request.prompt_tokens, request.cached_tokens, request.completion_tokens,
      rate === null ? "" : rate.toFixed(1), request.seconds.toFixed(1),
    ];
    const key = `${model.name} ${request.id}`;
    const row = rows.get(key) ?? newRow(model.name, request.id);
    texts.forEach((text, column) => { row.children[column].textContent = text; });
    row.dataset.priority = request.priority;
    row.querySelector(".priority").textContent = request.priority;
    return [key, row];
  });
  rows.clear();
  for (const [key, row] of shown) rows.set(key, row);
  const body = document.querySelector("#requests tbody");
  for (const row of [...body.children]) if (![...rows.values()].includes(row)) row.remove();
  body.append(...shown.map(([, row]) => row).filter((row) => row.parentNode !== body));
  if (!shown.length) {
    const none = element("td", "", "none");
    none.colSpan = COLUMNS + 1;
    body.append(element("tr"));
    body.lastChild.append(none);
  }
}

const percent = (part, whole) => `${whole ? Math.round((100 * part) / whole) : 0} %`;

let steps = [];
let stepsOf = "";

function show(model) {
  const { metrics, cells } = model;
  $("live-model").textContent = `${model.name}, ${model.num_ctx} tokens × ${model.parallel}`;
  $("rate").textContent = metrics.completion_tokens_per_second.toFixed(1);
  $("prompt-rate").textContent = metrics.prompt_tokens_per_second.toFixed(1);
  $("running").textContent = metrics.running;
  $("queued").textContent = metrics.queued;
  $("cached").textContent = percent(metrics.cached_tokens, metrics.cached_tokens + metrics.prompt_tokens);
  $("drafts").textContent = `${metrics.accepted_tokens} of ${metrics.drafted_tokens}`;
  $("graphs").textContent = percent(metrics.graphs_reused, metrics.graphs_reused + metrics.graphs_built);
  $("encoded").textContent = metrics.encoded_images;
  $("hits").textContent = metrics.image_hits;
  for (const kind of ["used", "shared", "free"]) $(`cells-${kind}`).textContent = cells[kind];
  showRequests(model, performance.now());
  drawCells(cells);
  if (stepsOf !== model.name) steps = [];
  stepsOf = model.name;
  steps = [...steps, ...model.steps].slice(-MOST_STEPS);
  $("step-note").textContent = drawSteps(steps);
}

async function look() {
  if (document.visibilityState === "visible" && !$("live").hidden) {
    try {
      const after = steps.length ? steps[steps.length - 1].at : 0;
      const answer = await ask(`/page/live?after=${after}`, {}, false);
      if (answer.ok) {
        const { models } = await answer.json();
        const model = models.find(({ name }) => name === $("model").value) ?? models[0];
        $("live-empty").hidden = Boolean(model);
        $("live-body").hidden = !model;
        $("live-model").hidden = !model;
        if (model) show(model);
      }
    } catch { /* the server is away; the next look tells */ }
  }
  setTimeout(look, EVERY);
}

$("toggle-live").addEventListener("click", () => {
  $("live").hidden = !$("live").hidden;
  $("toggle-live").setAttribute("aria-expanded", String(!$("live").hidden));
});

look();
