// One k or all, one scale or all. What is chosen stands in the address (?k=4&scale=small), so that it can be linked.
const address = new URLSearchParams(location.search);
const bar = document.createElement("div");
bar.className = "switches";
const label = document.createElement("span");
label.textContent = "Tables and pictures of";
bar.append(label);
for (const name of ["k", "scale"]) {
  const marked = [...document.querySelectorAll(`[data-${name}]`)];
  const values = [...new Set(marked.map((element) => element.dataset[name]))];
  if (name === "k") values.sort((a, b) => a - b);
  if (values.length < 2) continue;
  const holders = [...document.querySelectorAll("table, section")].filter((e) => e.querySelector(`[data-${name}]`));

  const choose = (chosen) => {
    for (const element of marked) element.classList.toggle(`off-${name}`, chosen !== "" && element.dataset[name] !== chosen);
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.value === chosen));
    for (const old of document.querySelectorAll(`.nothing-${name}`)) old.remove();
    for (const holder of chosen === "" ? [] : holders) say(holder, chosen);
    if (chosen === "") address.delete(name);
    else address.set(name, chosen);
    const query = String(address);
    history.replaceState(null, "", (query ? `?${query}` : location.pathname) + location.hash);
  };
  // A table of which nothing is left, and a section whose tables and drawings are all of other scales, say so.
  const say = (holder, chosen) => {
    const own = [...holder.querySelectorAll(`[data-${name}]`)].filter((e) => holder.tagName === "TABLE" || !e.closest("table"));
    if (own.length === 0 || own.some((element) => element.dataset[name] === chosen)) return;
    const note = document.createElement("p");
    note.className = `note nothing-${name}`;
    const there = [...new Set(own.map((element) => element.dataset[name]))].join(", ");
    note.textContent = name === "k" ? `Nothing here with k = ${chosen}, only with k = ${there}.` : `Nothing here at the scale “${chosen}”, only at “${there}”.`;
    if (holder.tagName === "TABLE") holder.closest(".exhibit").append(note);
    else own[0].before(note);
  };

  const group = document.createElement("div");
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", name === "k" ? "Show only one k" : "Show only one scale");
  group.append(name === "k" ? "k " : "scale ");
  const buttons = ["", ...values].map((value) => {
    const button = document.createElement("button");
    button.type = "button";
    button.value = value;
    button.textContent = value || "all";
    button.addEventListener("click", () => choose(value));
    return button;
  });
  group.append(...buttons);
  bar.append(group);
  const linked = address.get(name) ?? "";
  choose(values.includes(linked) ? linked : "");
}
if (bar.childElementCount > 1) document.querySelector("main").before(bar);
