"""The demo."""

from app.infra.settings import Settings


def main(settings: Settings) -> int:
    raise SystemExit(f"{settings.host}: to come")
