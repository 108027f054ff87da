"""A real browser. Without a Chromium on this machine these tests are reported as not run; nothing is downloaded for them."""

import asyncio
import shutil
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

expect.set_options(timeout=15_000)
_PATIENCE_SECONDS = 60


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("not run: chromium is not installed here")
    driver = await asyncio.wait_for(async_playwright().start(), _PATIENCE_SECONDS)
    try:
        launching = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        started = await asyncio.wait_for(launching, _PATIENCE_SECONDS)
        yield started
        await asyncio.wait_for(started.close(), _PATIENCE_SECONDS)
    finally:
        await asyncio.wait_for(driver.stop(), _PATIENCE_SECONDS)


def complaints_of(page: Page) -> list[str]:
    """What the browser says of errors and broken rules, as it comes. A status of the API is told there too, and is none."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def note(kind: str, text: str) -> None:
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):
            complaints.append(text)

    page.on("console", lambda said: note(said.type, said.text))
    return complaints
