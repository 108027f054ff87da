"""The page for people: static files that ask the API as any other client does. Nothing here knows a session or a run."""

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request, Response

from app.infra.errors import NotFound
from app.web import public

router = APIRouter(prefix="/console", include_in_schema=False)

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)


class _File:
    def __init__(self, path: Path) -> None:
        self.content = path.read_bytes()
        self.tag = f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'
        self.media_type = f"{_TYPES[path.suffix]}; charset=utf-8"


_FILES = {path.name: _File(path) for path in sorted((Path(__file__).parent / "page").iterdir()) if path.suffix in _TYPES}
"""All that can be asked for, by name: no path of a request ever reaches the disk."""


@router.get("")
@public
async def show_page(request: Request) -> Response:
    return _answer(request, "index.html")


@router.get("/{name}")
@public
async def show_file(request: Request, name: str) -> Response:
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    file = _FILES.get(name)
    if file is None:
        raise NotFound()
    headers = {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache", "ETag": file.tag}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
