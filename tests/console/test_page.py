"""How the page is served, and what may not stand in its files."""

import re
from pathlib import Path

import httpx
import pytest

import app.console

PAGE = Path(app.console.__file__).parent / "page"
FILES = sorted(PAGE.iterdir())


class TestServing:
    async def test_it_asks_for_no_key_and_allows_itself_nothing_from_elsewhere(self, http: httpx.AsyncClient) -> None:
        page = await http.get("/console")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy and "*" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"

    @pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
    async def test_each_file_comes_once_and_is_then_known(self, http: httpx.AsyncClient, file: Path) -> None:
        first = await http.get(f"/console/{file.name}")
        assert first.status_code == 200 and first.content == file.read_bytes()
        kinds = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
        assert first.headers["content-type"].startswith(kinds[file.suffix])
        again = await http.get(f"/console/{file.name}", headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")

    @pytest.mark.parametrize(
        "name", ["endpoints.py", "..%2Fendpoints.py", "../endpoints.py", "%2e%2e/main.py", "main.js%00", "x"]
    )
    async def test_nothing_else_is_given(self, http: httpx.AsyncClient, name: str) -> None:
        answer = await http.get(f"/console/{name}")
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


class TestFiles:
    @pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
    def test_no_text_becomes_markup_or_code_and_nothing_is_fetched_elsewhere(self, file: Path) -> None:
        text = file.read_text("utf-8")
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "localStorage"):
            assert word not in text
        assert not re.search(r"(https?:)?//[a-z0-9]", text.replace('xmlns="http://www.w3.org/2000/svg"', ""))
        assert not re.search(r"<[a-z]+[^>]* (on[a-z]+|style)=", text)
        assert len(text.splitlines()) <= 200

    @pytest.mark.parametrize("file", [file for file in FILES if file.suffix == ".js"], ids=lambda file: file.name)
    def test_what_is_imported_is_there(self, file: Path) -> None:
        for names, module in re.findall(r"^import \{([^}]*)\} from '\./([a-z]+\.js)'$", file.read_text("utf-8"), re.M):
            exported = (PAGE / module).read_text("utf-8")
            for name in names.split(","):
                assert re.search(rf"^export (async )?(function\*?|const|class) {name.strip()}\b", exported, re.M), name
