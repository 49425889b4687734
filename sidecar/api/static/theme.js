// Light, dark, or as the system says; the choice is kept in this browser.

import { byId, say } from "./dom.js";

const KEY = "retry-sidecar-theme";
const CHOICES = ["auto", "light", "dark"];

export function startTheme(redraw) {
  const button = byId("theme");
  let choice = CHOICES.includes(localStorage.getItem(KEY)) ? localStorage.getItem(KEY) : "auto";
  const apply = () => {
    if (choice === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    say(button, `Theme: ${choice}`);
    redraw();
  };
  button.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    localStorage.setItem(KEY, choice);
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  apply();
}
