"""The observations of the browser that the other tests rely on."""

from __future__ import annotations

from pathlib import Path

from tests.page.browser import Browser, Misconduct

POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'">"""


def _written(folder: Path, body: str) -> Path:
    file = folder / "page.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><title>page</title>{body}", encoding="utf-8")
    return file


def test_a_good_page_has_no_misconduct(browser: Browser, tmp_path: Path) -> None:
    browser.open(
        _written(tmp_path, "<script>document.title = 'ran'</script><img src='data:image/gif;base64,'>")
    )
    assert browser.driver.title == "ran"
    assert browser.misconduct() == Misconduct()


def test_errors_requests_and_dialogs_are_observed(browser: Browser, tmp_path: Path) -> None:
    scripts = "<script>throw new Error('thrown')</script><script>alert(1); console.warn('warned')</script>"
    browser.open(_written(tmp_path, f"<img src='http://127.0.0.1:9/image.png'>{scripts}"))
    found = browser.misconduct()
    assert any("thrown" in message for message in found.console)
    assert any("warned" in message for message in found.console)
    assert found.requests == ("http://127.0.0.1:9/image.png",)
    assert found.observed == ("alert",)
    browser.open(_written(tmp_path, ""))
    assert browser.misconduct() == Misconduct()


def test_violations_of_the_policy_are_observed(browser: Browser, tmp_path: Path) -> None:
    browser.open(_written(tmp_path, f"{POLICY}<script>window.hacked = 1</script><p style='color: red'>text"))
    assert browser.run("return window.hacked") is None
    assert browser.misconduct().observed == (
        "violation of script-src-elem by inline",
        "violation of style-src-attr by inline",
    )
