"""The page in a real browser, against the real service."""

import json
from collections.abc import AsyncIterator

import pytest
from playwright.async_api import Browser, Page, expect

from tests.api import Api, call, calls, wanted
from tests.e2e.conftest import complaints_of
from tests.tools_app import TestTools

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202egnp.exe " + "x" * 20_000
)


@pytest.fixture
async def page(browser: Browser, api: Api, base_url: str) -> AsyncIterator[Page]:
    """Signed in with a key of a new workspace. What the console says of errors or of the policy fails the test."""
    context = await browser.new_context(base_url=base_url)
    opened = await context.new_page()
    complaints = complaints_of(opened)
    await opened.goto("/console")
    await opened.get_by_label("Service key").fill(api.key)
    await opened.get_by_role("button", name="Sign in").click()
    await expect(opened.get_by_role("heading", name="Sessions")).to_be_visible()
    yield opened
    await context.close()
    assert complaints == []


class TestConsole:
    async def test_a_run_is_started_and_seen_as_it_goes(self, page: Page, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", {"items": [{"title": "A flat in Vigo"}]})
        session = await api.new_session(title="Flats")
        await page.get_by_role("link", name="Sessions").click()
        await page.reload()
        await page.get_by_role("row", name="Flats").get_by_role("link").click()
        await page.get_by_label("Input").last.fill("Find me a flat")
        await page.get_by_text("Script of the model").click()
        script = [call("search", {"q": "Vigo"}, text="Let me look."), {"text": "There is one in Vigo.", "chunk_chars": 4}]
        await page.get_by_label("Script").fill(json.dumps(script))
        await page.get_by_role("button", name="Send").click()
        await expect(page.get_by_text("There is one in Vigo.")).to_be_visible()
        await expect(page.locator(".status.completed").last).to_have_text("completed")
        await page.get_by_text("search · ok").click()
        await expect(page.get_by_text("A flat in Vigo")).to_be_visible()
        await page.reload()
        await expect(page.locator(".message.assistant").last).to_contain_text("There is one in Vigo.")
        assert len(await api.messages(session)) == 4

    async def test_what_waits_is_answered_in_the_inbox(self, page: Page, api: Api, test_tools: TestTools) -> None:
        pay = await test_tools.host(api, "pay", {"ok": True}, requires_approval=True)
        run = await api.run(await api.new_session(), calls(wanted("pay", {"sum": 5}), wanted("pay", {"sum": 500})), "Done.")
        await page.get_by_role("link", name="Inbox").click()
        first, second = page.locator(".question").nth(0), page.locator(".question").nth(1)
        await first.get_by_label("Arguments").fill('{"sum": 4}')
        await first.get_by_label("approve").check()
        await page.get_by_role("button", name="Answer").click()
        await expect(page.get_by_role("alert")).to_contain_text("Decide on each")
        await second.get_by_label("reject").check()
        await second.get_by_label("Reason").fill("too dear")
        await page.get_by_role("button", name="Answer").click()
        await expect(page.locator(".question")).to_have_count(0)
        played = await api.ended(run["id"])
        assert played.run["output"] == "Done."
        assert pay.arguments == [{"sum": 4}]
        assert played.outcomes == ["neutral", "denied"]

    async def test_what_others_say_is_only_ever_text(self, page: Page, api: Api, test_tools: TestTools) -> None:
        await test_tools.host(api, "search", {"items": [HOSTILE]})
        run = await api.run(
            await api.new_session(title=HOSTILE[:200]), call("search", {"q": HOSTILE}), HOSTILE, input=HOSTILE
        )
        await page.goto(f"/console#/runs/{run['id']}")
        await expect(page.locator(".text").last).to_contain_text("<script>document.title='owned'</script>")
        await page.goto(f"/console#/sessions/{run['session_id']}")
        await expect(page.locator(".message.assistant").last).to_contain_text("<img src=x onerror")
        assert await page.locator("img, script:not([src])").count() == 0
        assert await page.title() == "sessions · Rondo"

    async def test_every_view_shows_what_there_is(self, page: Page, api: Api) -> None:
        agent = await api.new_agent(name="packing", event_triggers=["saved"])
        await api.trigger()
        await api.post(
            "/v1/memories",
            {"tenant": {"type": "shop", "id": "1"}, "kind": "fact", "content": "Closed on Mondays.", "importance": 3},
        )
        body = {"description": "Asks the user.", "parameters": {"type": "object", "properties": {}}, "kind": "client"}
        await api.call("PUT", "/v1/tools/ask", body)
        for view, shown in {
            "runs": "scripted/test", f"agents/{agent['id']}": "fired", "agents": "packing", "tools": "Asks the user.",
            "tools/ask": "Arguments", "memories": "Closed on Mondays.", "usage": "scripted/test",
            "inbox": "Nothing waits for you.",
        }.items():  # fmt: skip
            await page.goto(f"/console#/{view}")
            await expect(page.get_by_role("main").get_by_text(shown).first).to_be_visible()

    async def test_a_key_that_was_deleted_meanwhile_asks_for_another(self, page: Page, api: Api, admin: Api) -> None:
        keys = (await admin.get("/v1/keys?limit=200"))["data"]
        (own,) = [key for key in keys if key["workspace_id"] == api.workspace_id]
        await admin.call("DELETE", f"/v1/keys/{own['id']}")
        await page.get_by_role("link", name="Runs").click()
        await expect(page.get_by_text("That key is not good any more.")).to_be_visible()
