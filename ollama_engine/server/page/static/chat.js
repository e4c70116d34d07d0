"use strict";
// The conversation: one message list, sent whole with each turn to /api/chat, whose answer comes as lines of JSON.

const $ = (id) => document.getElementById(id);
const KEY = "ollama_engine.model";
const API_KEY = "ollama_engine.key";
const conversation = [];
let images = [];
let running = null;

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function say(text, bad = false) {
  $("status").textContent = text;
  $("status").className = bad ? "error" : "";
}

// The server's answer. Where it wants a key, whoever sits here is asked for one, which is kept until the tab is closed.
async function ask(path, options = {}, mayPrompt = true) {
  const key = sessionStorage.getItem(API_KEY);
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status !== 401 || !mayPrompt) return answer;
  const given = window.prompt("This server asks for an API key.");
  if (!given) return answer;
  sessionStorage.setItem(API_KEY, given.trim());
  return ask(path, options, false);
}

// -- models ----------------------------------------------------------------------------------------------------------

async function loadModels() {
  try {
    const answer = await ask("/api/tags");
    if (!answer.ok) throw new Error(await errorOf(answer));
    const names = (await answer.json()).models.map((model) => model.name);
    for (const packaged of ["demo:latest", "demo-vision:latest"]) if (!names.includes(packaged)) names.push(packaged);
    const wanted = localStorage.getItem(KEY);
    $("model").replaceChildren(...names.map((name) => {
      const option = element("option", "", name);
      option.selected = name === wanted;
      return option;
    }));
  } catch (error) {
    say(`The models cannot be listed: ${error.message}`, true);
  }
}

async function errorOf(answer) {
  const text = await answer.text();
  try {
    const body = JSON.parse(text);
    return body.error?.message ?? body.error ?? text;
  } catch {
    return text || `${answer.status} ${answer.statusText}`;
  }
}

// -- messages --------------------------------------------------------------------------------------------------------

function showText(parent, text) {
  // Blocks between lines of ``` are code; all else is text as it stands. Nothing of it becomes markup.
  parent.replaceChildren();
  text.split(/^```[^\n]*\n?/m).forEach((part, number) => {
    if (part === "") return;
    parent.append(number % 2 ? element("pre", "", part.replace(/\n$/, "")) : document.createTextNode(part));
  });
}

function addMessage(role, text, pictures = []) {
  const item = element("li", role);
  item.append(element("div", "who", role === "user" ? "You" : $("model").value));
  const thinking = element("details");
  thinking.hidden = true;
  thinking.append(element("summary", "", "Thinking"), element("div", "text"));
  const body = element("div", "text");
  showText(body, text);
  for (const picture of pictures) {
    const shown = element("img");
    shown.src = picture.url;
    shown.alt = picture.name;
    body.append(element("br"), shown);
  }
  item.append(thinking, body);
  $("messages").append(item);
  $("empty").hidden = true;
  scrollDown(true);
  return { item, body, thinking };
}

function scrollDown(always) {
  const list = $("messages");
  if (always || list.scrollHeight - list.scrollTop - list.clientHeight < 80) list.scrollTop = list.scrollHeight;
}

function request() {
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  const options = { temperature: number("temperature"), seed: number("seed"), num_predict: number("num-predict") };
  const system = $("system").value.trim();
  const body = {
    model: $("model").value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...conversation],
    options,
  };
  if ($("think").value) body.think = $("think").value === "true";
  const schema = $("schema").value.trim();
  if (schema) body.format = JSON.parse(schema);
  return body;
}

function checkSchema() {
  const text = $("schema").value.trim();
  let wrong = "";
  try {
    if (text) JSON.parse(text);
  } catch (error) {
    wrong = `The schema is not JSON: ${error.message}`;
  }
  $("schema-error").textContent = wrong;
  return !wrong;
}

async function send() {
  const text = $("prompt").value.trim();
  if (running || (!text && !images.length)) return;
  if (!checkSchema()) {
    $("options").open = true;
    $("schema").focus();
    return;
  }
  const message = { role: "user", content: text };
  if (images.length) message.images = images.map((image) => image.url.slice(image.url.indexOf(",") + 1));
  conversation.push(message);
  addMessage("user", text, images);
  $("prompt").value = "";
  setImages([]);
  await answer();
}

async function answer() {
  const shown = addMessage("assistant", "");
  running = new AbortController();
  setRunning(true);
  say("Waiting for the model …");
  const found = { content: "", thinking: "", calls: [], began: performance.now(), first: 0, last: null };
  try {
    const reply = await ask("/api/chat", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(request()),
      signal: running.signal,
    });
    if (!reply.ok) throw new Error(await errorOf(reply));
    for await (const line of linesOf(reply.body)) take(JSON.parse(line), found, shown);
    say("");
  } catch (error) {
    if (error.name === "AbortError") {
      say("Stopped.");
    } else {
      shown.item.append(element("p", "error", error.message));
      say("The answer failed.", true);
    }
  } finally {
    if (found.content || found.calls.length) {
      conversation.push({ role: "assistant", content: found.content, ...(found.calls.length && { tool_calls: found.calls }) });
    } else {
      conversation.pop();
    }
    showFacts(found, shown);
    running = null;
    setRunning(false);
  }
}

function take(chunk, found, shown) {
  if (chunk.error) throw new Error(chunk.error);
  if (!found.first && (chunk.message?.content || chunk.message?.thinking)) {
    found.first = performance.now();
    say("");
  }
  found.content += chunk.message?.content ?? "";
  found.thinking += chunk.message?.thinking ?? "";
  found.calls.push(...(chunk.message?.tool_calls ?? []));
  if (chunk.message?.thinking) {
    shown.thinking.hidden = false;
    shown.thinking.lastChild.textContent = found.thinking;
  }
  if (chunk.message?.content) showText(shown.body, found.content);
  if (chunk.done) found.last = chunk;
  scrollDown(false);
}

function showFacts(found, shown) {
  const facts = [];
  if (found.last?.eval_count) {
    facts.push(`${found.last.eval_count} tokens`);
    if (found.last.eval_duration) facts.push(`${(found.last.eval_count / found.last.eval_duration * 1e9).toFixed(1)} tokens/s`);
  }
  if (found.first) facts.push(`first after ${((found.first - found.began) / 1000).toFixed(2)} s`);
  if (found.last?.done_reason === "length") facts.push("cut off: the limit of tokens was reached");
  if (facts.length) shown.item.append(element("div", "facts", facts.join(" · ")));
  scrollDown(false);
}

async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) yield line;
  }
  if (rest) yield rest;
}

function setRunning(now) {
  const focused = document.activeElement;
  $("send").hidden = now;
  $("stop").hidden = !now;
  $("model").disabled = now;
  if (now && focused === $("send")) $("stop").focus();
  if (!now && (focused === $("stop") || focused === document.body)) $("prompt").focus();
}

// -- images ----------------------------------------------------------------------------------------------------------

function setImages(next) {
  images = next;
  $("images").replaceChildren(...images.map((image) => {
    const item = element("li");
    const shown = element("img");
    shown.src = image.url;
    shown.alt = image.name;
    const remove = element("button", "", "×");
    remove.type = "button";
    remove.setAttribute("aria-label", `Remove ${image.name}`);
    remove.addEventListener("click", () => setImages(images.filter((other) => other !== image)));
    item.append(shown, remove);
    return item;
  }));
}

async function addFiles(files) {
  const pictures = [...files].filter((file) => file.type.startsWith("image/"));
  if (pictures.length < files.length) say("Only images can be added.", true);
  const read = await Promise.all(pictures.map((file) => new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve({ name: file.name, url: reader.result }));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  })));
  setImages([...images, ...read]);
  $("prompt").focus();
}

// -- events ----------------------------------------------------------------------------------------------------------

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
$("prompt").addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) { event.preventDefault(); addFiles(event.clipboardData.files); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
$("stop").addEventListener("click", () => running?.abort());
$("schema").addEventListener("input", checkSchema);
$("file").addEventListener("change", () => { addFiles($("file").files); $("file").value = ""; });
$("model").addEventListener("change", () => localStorage.setItem(KEY, $("model").value));
$("new-chat").addEventListener("click", () => {
  running?.abort();
  conversation.length = 0;
  $("messages").replaceChildren();
  $("empty").hidden = false;
  setImages([]);
  say("");
  $("prompt").focus();
});
let dragged = 0;
addEventListener("dragenter", (event) => { event.preventDefault(); dragged += 1; $("drop").hidden = false; });
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("dragleave", () => { dragged -= 1; if (dragged <= 0) { dragged = 0; $("drop").hidden = true; } });
addEventListener("drop", (event) => {
  event.preventDefault();
  dragged = 0;
  $("drop").hidden = true;
  addFiles(event.dataTransfer.files);
});

loadModels();
$("prompt").focus();
