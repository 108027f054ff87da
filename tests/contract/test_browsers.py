"""What a browser is told: headers that keep an answer from being taken for more than it is, and who may read it (CORS)."""

from collections.abc import AsyncIterator

import httpx
import pytest

from app.auth import repository as keys
from app.infra.settings import Settings, SettingsError, read_settings
from tests.api import Api, read_events
from tests.conftest import serving

ORIGIN = "https://app.example.com"


class TestSecurityHeaders:
    async def answers(self, api: Api) -> AsyncIterator[httpx.Response]:
        run = await api.run(await api.new_session(), "Hi.")
        yield await api.call("GET", "/v1/sessions")
        yield await api.call("GET", f"/v1/runs/{run['id']}/events")
        yield await api.call("DELETE", f"/v1/sessions/{run['session_id']}")
        yield await api.call("GET", "/v1/sessions/none")
        yield await api.call("GET", "/nothing/at/all")
        yield await api.call("PUT", "/v1/sessions")
        yield await api.call("POST", "/v1/sessions", {"surprise": 1})
        yield await api.with_key("nonsense").call("GET", "/v1/sessions")
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
            yield await api.http.get(path)

    async def test_every_answer_has_them(self, api: Api) -> None:
        statuses = set()
        async for answer in self.answers(api):
            statuses.add(answer.status_code)
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["x-frame-options"] == "DENY"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["cache-control"] in ("no-store", "no-cache, no-transform")
            assert answer.headers["x-request-id"].startswith("req_")
            assert "server" not in answer.headers or answer.headers["server"] == "uvicorn"
        assert statuses == {200, 204, 401, 404, 405, 422}


@pytest.fixture(scope="module")
async def open_http(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    """A service that pages of one other origin may use."""
    allowing = settings.model_copy(update={"cors_origins": (ORIGIN,)})
    async with serving(allowing) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=20) as http:
        yield http


def preflight(origin: str, method: str, *headers: str) -> dict[str, str]:
    asked = {"Origin": origin, "Access-Control-Request-Method": method}
    return {**asked, "Access-Control-Request-Headers": ", ".join(headers)} if headers else asked


class TestOtherOrigins:
    @pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
    async def test_a_page_of_the_named_origin_may_ask(self, open_http: httpx.AsyncClient, method: str) -> None:
        headers = preflight(ORIGIN, method, "authorization", "content-type", "idempotency-key", "last-event-id")
        answer = await open_http.options("/v1/sessions", headers=headers)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert method in answer.headers["access-control-allow-methods"]
        assert "idempotency-key" in answer.headers["access-control-allow-headers"].lower()
        assert "access-control-allow-credentials" not in answer.headers

    @pytest.mark.parametrize("origin", ["https://evil.example.com", "http://app.example.com", ORIGIN + ".evil.com", "null"])
    async def test_a_page_of_another_may_not(self, open_http: httpx.AsyncClient, api: Api, origin: str) -> None:
        answer = await open_http.options("/v1/sessions", headers=preflight(origin, "POST"))
        assert answer.status_code == 400
        assert "access-control-allow-origin" not in answer.headers
        read = await open_http.get("/v1/sessions", headers=api.headers(Origin=origin))
        assert "access-control-allow-origin" not in read.headers

    async def test_without_the_setting_nobody_may(self, api: Api) -> None:
        read = await api.http.get("/v1/sessions", headers=api.headers(Origin=ORIGIN))
        assert (read.status_code, "access-control-allow-origin" in read.headers) == (200, False)

    async def test_refusals_can_be_read_too_with_when_to_come_back(self, open_http: httpx.AsyncClient) -> None:
        answer = await open_http.get("/v1/sessions", headers={"Origin": ORIGIN})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, ORIGIN)
        exposed = answer.headers["access-control-expose-headers"]
        assert {"Retry-After", "X-Request-Id", "Rondo-Run", "Idempotent-Replayed"} <= set(exposed.split(", "))

    @pytest.mark.parametrize(("error", "status"), [(RuntimeError("x"), 500), (ConnectionRefusedError("x"), 503)])
    async def test_a_failure_can_be_read_too(
        self, open_http: httpx.AsyncClient, admin: Api, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
    ) -> None:
        async def broken(*_: object) -> None:
            raise error

        monkeypatch.setattr(keys, "list_workspaces", broken)
        answer = await open_http.get("/v1/workspaces", headers=admin.headers(Origin=ORIGIN))
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, ORIGIN)
        assert answer.headers["x-content-type-options"] == "nosniff"

    async def test_an_event_source_follows_with_a_token_in_the_query(self, open_http: httpx.AsyncClient, api: Api) -> None:
        run = await api.run(await api.new_session(), "Hi.")
        token = (await api.post(f"/v1/sessions/{run['session_id']}/tokens", {}))["token"]
        path = f"/v1/runs/{run['id']}/events?access_token={token}"
        async with open_http.stream("GET", path, headers={"Origin": ORIGIN}) as answer:
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            assert [event.type async for event in read_events(answer)][-1] == "run.completed"


class TestTheSetting:
    @pytest.mark.parametrize(
        "wrong", ["app.example.com", "https://a.com/", "https://a.com/path", "https://u@a.com", "https://"]
    )
    def test_what_is_no_origin_stops_the_start(self, wrong: str) -> None:
        with pytest.raises(SettingsError, match="RONDO_CORS_ORIGINS"):
            read_settings({"RONDO_CORS_ORIGINS": f"{ORIGIN},{wrong}"})

    def test_several_may_be_named(self) -> None:
        given = read_settings({"RONDO_CORS_ORIGINS": f"{ORIGIN}, http://localhost:5173"})
        assert given.cors_origins == (ORIGIN, "http://localhost:5173")
