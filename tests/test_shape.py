"""The layout of the code, held by its syntax trees alone: sizes, names, and who may import what."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
APP = ROOT / "app"
FILES = sorted(APP.rglob("*.py"))

MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 60
EMPTY_WORDS = {"utils", "helpers", "common", "core", "base", "manager"}

WEB = (
    "main",
    "web",
    "bodies",
    "problems",
    "request_log",
    "*/endpoints",
    "runs/session_endpoints",
    "runs/dependencies",
    "events/sse",
    "health",
    "openapi",
    "cli",
    "console/*",
)
TABLES = (
    "*/models",
    "*/repository",
    "infra/database",
    "infra/reach",
    "web",
    "idempotency",
    "tables",
    "migrations",
    "sessions/tokens",
    "health",
)
LOG = ("infra/*", "events/*", "worker", "health", "process")
OUT = ("providers/*", "outbound/*", "demo/*", "process")
ALLOWED_IMPORTS = {
    "fastapi": WEB, "starlette": WEB,
    "sqlmodel": TABLES, "sqlalchemy": TABLES,
    "redis": LOG, "arq": LOG,
    "httpx": OUT, "aiohttp": OUT,
}  # fmt: skip
"""Where a package may be imported, as patterns of paths below `app` without `.py`."""

NOT_OUR_WORDS = {
    "thread_id", "chat_id", "conversation_id", "chat_session", "db_session", "bot", "bots", "job_id", "task_id",
    "billing", "masker", "unmask",
}  # fmt: skip
"""Words for which the vocabulary has another one, as whole names of functions, arguments, fields and variables."""


def name_of(file: Path) -> str:
    return file.relative_to(APP).with_suffix("").as_posix()


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@cache
def all_nodes() -> tuple[tuple[Path, ast.AST], ...]:
    return tuple((file, node) for file in FILES for node in ast.walk(tree_of(file)))


def nodes_of(*kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    return ((file, node) for file, node in all_nodes() if isinstance(node, kinds))


@cache
def functions() -> tuple[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef], ...]:
    found = ((file, node) for file, node in all_nodes() if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return tuple(found)


def place(file: Path, node: ast.AST) -> str:
    return f"app/{file.relative_to(APP)}:{getattr(node, 'lineno', 1)}"


def packages_of(node: ast.AST) -> list[str]:
    """The first parts of what an import names."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module.partition(".")[0]]
    return []


def matches(name: str, pattern: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) is not None


def bases_of(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(base) for base in node.bases}


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


class TestSizes:
    def test_there_is_something_to_look_at(self) -> None:
        assert len(FILES) > 50

    def test_no_file_is_too_long(self) -> None:
        lengths = {name_of(file): len(file.read_text(encoding="utf-8").splitlines()) for file in FILES}
        assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}

    def test_no_function_is_too_long(self) -> None:
        lengths = {f"{place(file, node)} {node.name}": lines_of(node) for file, node in functions()}
        assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}

    def test_every_init_is_empty(self) -> None:
        assert [name_of(file) for file in FILES if file.name == "__init__.py" and file.stat().st_size] == []

    def test_every_folder_is_a_package(self) -> None:
        folders = {file.parent for file in FILES}
        assert [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()] == []


class TestNames:
    def test_no_file_or_folder_has_a_name_that_says_nothing(self) -> None:
        parts = {part for file in FILES for part in file.relative_to(ROOT).with_suffix("").parts}
        assert {part for part in parts if EMPTY_WORDS & set(part.split("_"))} == set()

    def test_the_database_handle_is_never_called_session(self) -> None:
        wrong = [
            place(file, node)
            for file, node in nodes_of(ast.arg)
            if isinstance(node, ast.arg) and node.annotation and "AsyncSession" in ast.unparse(node.annotation)
            if node.arg != "db"
        ]
        assert wrong == []

    def test_nothing_is_called_by_a_word_that_the_vocabulary_has_another_for(self) -> None:
        used: dict[str, str] = {}
        for file, node in nodes_of(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.arg, ast.Name):
            name = getattr(node, "name", None) or getattr(node, "arg", None) or getattr(node, "id", "")
            used.setdefault(name.lower(), place(file, node))
        assert {name: where for name, where in used.items() if name in NOT_OUR_WORDS} == {}


class TestImports:
    @pytest.mark.parametrize("package", ALLOWED_IMPORTS)
    def test_a_package_is_imported_only_where_it_belongs(self, package: str) -> None:
        wrong = [
            place(file, node)
            for file, node in nodes_of(ast.Import, ast.ImportFrom)
            if package in packages_of(node)
            if not any(matches(name_of(file), pattern) for pattern in ALLOWED_IMPORTS[package])
        ]
        assert wrong == []

    def test_the_loop_and_the_scope_know_the_standard_library_and_pydantic(self) -> None:
        allowed = {
            "__future__",
            "app",
            "asyncio",
            "collections",
            "dataclasses",
            "datetime",
            "enum",
            "json",
            "math",
            "pydantic",
        }
        allowed |= {"re", "typing", "time", "itertools", "functools", "contextlib", "unicodedata", "string"}
        found = {
            (name_of(file), package)
            for file, node in nodes_of(ast.Import, ast.ImportFrom)
            if name_of(file) == "scope" or name_of(file).startswith("loop/")
            for package in packages_of(node)
        }
        assert {item for item in found if item[1] not in allowed} == set()

    def test_the_loop_imports_nothing_of_ours_but_itself(self) -> None:
        wrong = [
            place(file, node)
            for file, node in nodes_of(ast.ImportFrom)
            if isinstance(node, ast.ImportFrom) and name_of(file).startswith("loop/")
            if (node.module or "").startswith("app") and not (node.module or "").startswith("app.loop")
        ]
        assert wrong == []

    def test_nothing_is_imported_inside_a_function(self) -> None:
        wrong = [
            place(file, inner)
            for file, function in functions()
            for inner in ast.walk(function)
            if isinstance(inner, ast.Import | ast.ImportFrom)
        ]
        assert wrong == []

    def test_no_circle_is_hidden_behind_type_checking(self) -> None:
        names = [place(file, node) for file, node in nodes_of(ast.Name) if getattr(node, "id", "") == "TYPE_CHECKING"]
        attributes = [
            place(file, node) for file, node in nodes_of(ast.Attribute) if getattr(node, "attr", "") == "TYPE_CHECKING"
        ]
        assert names + attributes == []

    def test_everything_is_imported_by_its_full_name(self) -> None:
        wrong = [
            place(file, node)
            for file, node in nodes_of(ast.ImportFrom)
            if isinstance(node, ast.ImportFrom) and (node.level or any(alias.name == "*" for alias in node.names))
        ]
        assert wrong == []


class TestTexts:
    def test_every_module_says_what_it_is_for(self) -> None:
        assert [name_of(file) for file in FILES if file.stat().st_size and not ast.get_docstring(tree_of(file))] == []

    def test_nothing_is_left_to_do(self) -> None:
        marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
        assert [name_of(file) for file in FILES if marks.search(file.read_text(encoding="utf-8"))] == []

    def test_a_public_function_that_is_not_obvious_says_what_to_rely_on(self) -> None:
        """One of more than 20 lines; routes aside, which the OpenAPI document describes."""
        wrong = [
            f"{place(file, node)} {node.name}"
            for file, node in functions()
            if not node.name.startswith("_") and lines_of(node) > 20
            if not node.decorator_list and not ast.get_docstring(node)
        ]
        assert wrong == []

    def test_a_public_class_that_is_not_obvious_says_what_to_rely_on(self) -> None:
        """One of more than 40 lines; what is only fields aside."""
        wrong = [
            f"{place(file, node)} {node.name}"
            for file, node in nodes_of(ast.ClassDef)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and lines_of(node) > 40
            if not bases_of(node) & {"BaseModel", "SQLModel", "Shape", "RunOptions"} and not ast.get_docstring(node)
        ]
        assert wrong == []
