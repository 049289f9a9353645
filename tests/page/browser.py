"""A browser without a window, for the tests of pages: Chromium, driven by selenium.

It records everything that a page must not do: errors and warnings of the console, requests, violations of the
content-security policy, and dialogs.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

#: Debian's packages chromium and chromium-driver; elsewhere, programs of these names in PATH.
PROGRAMS = ("chromium", "chromedriver")

#: Seconds until a condition must hold, also on a loaded machine.
PATIENCE = 60.0

#: The size of the window in CSS pixels.
WINDOW = (1400, 900)

#: Runs before the scripts of a page, and is not subject to its policy.
_OBSERVER = """
window.observed = [];
document.addEventListener("securitypolicyviolation", (event) => {
  observed.push(`violation of ${event.violatedDirective} by ${event.blockedURI}`);
});
window.addEventListener("unhandledrejection", (event) => observed.push(`rejection: ${event.reason}`));
for (const name of ["alert", "confirm", "prompt", "open", "print"]) window[name] = () => observed.push(name);
"""


def missing_program() -> str | None:
    """The first program that is not installed."""
    return next((name for name in PROGRAMS if shutil.which(name) is None), None)


@dataclass(frozen=True)
class Misconduct:
    """What a page did that it must not do since it was opened; all are empty for a good page.

    Attributes:
        console: errors and warnings.
        requests: addresses other than that of the page, without ``data:``.
        observed: violations of the policy, and calls of dialogs.
    """

    console: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()
    observed: tuple[str, ...] = ()


class Browser:
    """One tab of a running Chromium."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver
        self._address = ""
        self._console: list[str] = []
        self._requests: list[str] = []
        self._media = [("light", "")]
        self._emulate()
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _OBSERVER})

    def open(self, page: Path | str, section: str = "") -> float:
        """Open a file or address, and wait until its scripts have run; seconds until then."""
        self._address = page.as_uri() if isinstance(page, Path) else page
        self.driver.get("about:blank")  # another section of the same file would not load it again
        self._read_logs()
        self._console, self._requests = [], []
        started = time.perf_counter()
        self.driver.get(self._address + (f"#{section}" if section else ""))
        self.wait("return document.readyState === 'complete'")
        return time.perf_counter() - started

    def run(self, script: str, *arguments: Any) -> Any:
        """Evaluate the body of a function; ``arguments[i]`` are its arguments."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, *arguments: Any) -> Any:
        """The value of ``script`` as soon as it is true.

        Raises:
            AssertionError: it is false for too long.
        """
        return self.wait_for(lambda: self.run(script, *arguments), script)

    def wait_for(self, condition: Callable[[], Any], text: str) -> Any:
        """The value of ``condition`` as soon as it is true; ``text`` describes it in errors."""
        end = time.monotonic() + PATIENCE
        while not (value := condition()):
            assert time.monotonic() < end, f"not within {PATIENCE:.0f} s: {text}; {self.misconduct()}"
            time.sleep(0.02)
        return value

    def press(self, *keys: str) -> None:
        """Press keys one after another, in the element that has the focus."""
        from selenium.webdriver import ActionChains

        for key in keys:
            ActionChains(self.driver, duration=0).send_keys(key).perform()

    def click(self, x: float, y: float, count: int = 1) -> None:
        """Click at a point of the window, in CSS pixels."""
        point = {"x": x, "y": y, "button": "left", "clickCount": 1}
        self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", {**point, "type": "mouseMoved"})
        for clicks in range(1, count + 1):
            for kind in ("mousePressed", "mouseReleased"):
                event = {**point, "type": kind, "clickCount": clicks}
                self.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def misconduct(self) -> Misconduct:
        """What the page did since it was opened."""
        self._read_logs()
        observed = self.run("return window.observed || ['nothing observes the page']")
        requests = [
            url for url in self._requests if url.partition("#")[0] != self._address and url[:5] != "data:"
        ]
        return Misconduct(tuple(self._console), tuple(requests), tuple(observed))

    @contextmanager
    def media(self, scheme: Literal["light", "dark"] = "light", medium: str = "") -> Iterator[None]:
        """Emulate a colour scheme, no animations, and a medium such as ``print``, within the context."""
        self._media.append((scheme, medium))
        self._emulate()
        try:
            yield
        finally:
            self._media.pop()
            self._emulate()

    def _emulate(self) -> None:
        scheme, medium = self._media[-1]
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium, "features": features})

    def _read_logs(self) -> None:
        """Move errors and requests from the logs of the browser, which then forgets them."""
        for entry in self.driver.get_log("browser"):
            if entry["level"] in ("SEVERE", "WARNING"):
                self._console.append(entry["message"])
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._requests.append(message["params"]["request"]["url"])


@contextmanager
def started() -> Iterator[Browser]:
    """A browser that ends with the context."""
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    options = ChromeOptions()
    options.binary_location = str(shutil.which(PROGRAMS[0]))
    for argument in _arguments():
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options, ChromeService(shutil.which(PROGRAMS[1])))
    driver.set_script_timeout(PATIENCE)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def _arguments() -> list[str]:
    found = [
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--force-device-scale-factor=1",
        "--hide-scrollbars",
        f"--window-size={WINDOW[0]},{WINDOW[1]}",
    ]
    # Chromium's sandbox doesn't run as root.
    return [*found, "--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else found
