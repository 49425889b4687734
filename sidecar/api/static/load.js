// Loads the page again when an instance with too much to do has refused one of its files: without it nothing starts.

const AGAIN_MS = 3000;

addEventListener("error", ({ target }) => {
  if (!(target instanceof HTMLScriptElement || target instanceof HTMLLinkElement)) return;
  const link = document.getElementById("link");
  if (link) link.textContent = `No answer, retry in ${AGAIN_MS / 1000} s`;
  setTimeout(() => location.reload(), AGAIN_MS);
}, true);
