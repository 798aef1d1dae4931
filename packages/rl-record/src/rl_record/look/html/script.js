for (const film of document.querySelectorAll("figure.film")) {
  const screen = film.querySelector(".screen"), slider = film.querySelector("input");
  const button = film.querySelector("button"), said = film.querySelector("output");
  const rows = JSON.parse(film.dataset.rows), height = Number(film.dataset.height);
  let timer = 0;
  const show = (frame) => {
    slider.value = frame;
    screen.style.backgroundPositionY = `${-frame * height}px`;
    said.textContent = `row ${rows[frame]}`;
  };
  const stop = () => { clearInterval(timer); timer = 0; button.textContent = "Play"; };
  button.addEventListener("click", () => {
    if (timer) return stop();
    button.textContent = "Pause";
    timer = setInterval(() => show((Number(slider.value) + 1) % rows.length), 100);
  });
  slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
  film.querySelector(".controls").hidden = rows.length < 2;
  show(0);
}
// in the frame of a notebook a link to a place would leave the page: its base is the notebook
if (location.protocol === "about:") {
  document.addEventListener("click", (event) => {
    const link = event.target.closest('a[href^="#"]');
    const place = link && document.getElementById(link.getAttribute("href").slice(1));
    if (!place) return;
    event.preventDefault();
    document.querySelector(".target")?.classList.remove("target");
    place.classList.add("target");
    place.scrollIntoView();
  });
}
