// Light or dark: as the system is, until the button is used.

const KEY = "shoal-theme";

export function followTheme(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const chosen = () => localStorage.getItem(KEY) ?? (system.matches ? "dark" : "light");
  const apply = () => {
    document.documentElement.dataset.theme = chosen();
    button.textContent = chosen() === "dark" ? "Light" : "Dark";
    dispatchEvent(new Event("themechange"));
  };
  button.addEventListener("click", () => {
    localStorage.setItem(KEY, chosen() === "dark" ? "light" : "dark");
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}
