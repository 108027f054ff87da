"""The chat page of the examples: a browser with a client token, `EventSource`, another origin."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, expect

from app.infra.database import Database
from app.infra.settings import Settings
from tests.api import Api
from tests.conftest import serving
from tests.e2e.conftest import complaints_of
from tests.ports import free_port
from tests.test_examples import EXAMPLES


@asynccontextmanager
async def chat(api: Api, rondo: str, port: int) -> AsyncIterator[None]:
    environment = {"PATH": os.environ["PATH"], "RONDO_URL": f"{rondo}/v1", "RONDO_KEY": api.key, "PORT": str(port)}
    command = [sys.executable, str(EXAMPLES / "chat" / "app.py")]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert (await asyncio.wait_for(process.stdout.readline(), 30)).startswith(b"chat on ")
        yield
    finally:
        process.terminate()
        await process.wait()


async def test_it_streams_a_reply_and_finds_a_run_under_way_after_a_reload(
    browser: Browser, migrated: Database, settings: Settings, api: Api
) -> None:
    port = free_port()
    origin = f"http://127.0.0.1:{port}"
    async with serving(settings.model_copy(update={"cors_origins": (origin,)})) as rondo, chat(api, rondo, port):
        page = await (await browser.new_context()).new_page()
        complaints = complaints_of(page)
        await page.goto(origin)
        await page.get_by_label("Message").fill("Hello there")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("p.assistant")).to_contain_text("This reply")
        await page.reload()
        await expect(page.locator("p.user")).to_have_text("Hello there")
        await expect(page.locator("p.assistant")).to_have_text(
            "This reply was written by hand; with a real model it would answer you."
        )
        await expect(page.locator("p.doing")).to_have_count(0)
        await page.context.close()
    assert complaints == []
