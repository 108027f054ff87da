"""Every place in the code from which a model can be reached, found in its syntax trees: each passes the redaction.

A model is reached by `ask` of a Provider. Those are built in the catalog alone; what the catalog gives goes through one
function (`models_source`), whose only user puts `RedactedModels` around it and hands that out.
"""

import ast
from pathlib import Path

APP = Path(__file__).parents[2] / "app"
TREES = {file.relative_to(APP).as_posix(): ast.parse(file.read_text(encoding="utf-8")) for file in APP.rglob("*.py")}


def places_of(wanted: str) -> set[str]:
    """Files with a call of that name, or of an attribute of that name."""
    return {
        file
        for file, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", None)) == wanted
    }


def names_in(file: str) -> set[str]:
    return {node.id for node in ast.walk(TREES[file]) if isinstance(node, ast.Name)}


def assigned(file: str, name: str) -> list[str]:
    """What is ever assigned to a variable there."""
    return [
        ast.unparse(node.value)
        for node in ast.walk(TREES[file])
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]
    ]


def given(file: str, callee: str) -> list[list[str]]:
    """The arguments of each call there."""
    return [
        [ast.unparse(argument) for argument in node.args]
        for node in ast.walk(TREES[file])
        if isinstance(node, ast.Call) and ast.unparse(node.func) == callee
    ]


class TestReachingAModel:
    def test_clients_of_model_apis_are_made_in_the_catalog_alone(self) -> None:
        for client in ("OpenAIClient", "AnthropicClient", "ScriptedClient", "RetryingProvider"):
            named = {file for file in TREES if client in names_in(file)}
            assert named == {"providers/catalog.py"}, client

    def test_a_provider_comes_out_of_the_catalog_in_one_place(self) -> None:
        catalogs = {
            file for file, tree in TREES.items() if "Catalog" in {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        }
        asking = {file for file in catalogs if "catalog.provider" in {ast.unparse(n) for n in ast.walk(TREES[file])}}
        assert asking == {"sources.py"}
        assert [file for file in TREES if ".provider(request" in ast.unparse(TREES[file])] == ["sources.py"]

    def test_what_comes_out_is_wrapped_before_anybody_gets_it(self) -> None:
        assert places_of("models_source") == {"process.py"}
        (made,) = assigned("process.py", "model_for")
        assert made.startswith("RedactedModels(models_source(")
        assert ast.unparse(TREES["process.py"]).count("models_source(") == 1

    def test_all_who_ask_models_are_given_the_wrapped_ones(self) -> None:
        taking = {
            file
            for file, tree in TREES.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == "__init__"
            for argument in node.args.args
            if argument.annotation is not None and ast.unparse(argument.annotation) == "ModelFor"
        }
        assert taking == {"runs/runner.py", "runs/compressor.py", "runs/distiller.py", "runs/redacted_models.py"}
        for name in ("Runner", "Compressor", "Distiller"):
            assert places_of(name) == {"process.py"}, name
            (arguments,) = given("process.py", name)
            assert "model_for" in arguments, name

    def test_only_wraps_the_loop_and_side_calls_ask(self) -> None:
        """A new place that asks must be looked at: where does its provider come from?"""
        asking = {
            file
            for file, tree in TREES.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "ask"
            if len(node.args) == 1 and "line" not in ast.unparse(node.func.value)
        }
        wraps = {"redaction/ports.py", "runs/redacted_models.py", "runs/hooks.py", "runs/held.py", "runs/fitting.py"}
        wraps |= {"runs/spans.py"}
        assert asking == wraps | {"runs/metering.py", "loop/loop.py", "runs/side_calls.py"}

    def test_a_side_call_s_model_comes_from_whoever_is_given(self) -> None:
        (opened,) = given("runs/side_calls.py", "model_for")
        assert opened[0] == "run"
        assert places_of("open_side_call") == {"runs/compressor.py", "runs/distiller.py"}


class TestReachingATool:
    def test_the_loop_is_given_the_joined_tools_alone(self) -> None:
        assert places_of("run_loop") == {"runs/runner.py"}
        (arguments,) = given("runs/runner.py", "run_loop")
        runner = ast.unparse(TREES["runs/runner.py"])
        assert arguments[1:3] == ["model", "tools"]
        assert "model, tools = (spans.provider(fitted), spans.tools(HeldTools(held, joined.tools)))" in runner
        assert "fitted = FittedProvider(HeldProvider(held, joined.provider, unknown), fitting)" in runner
        assert places_of("Joined") == {"runs/joined.py"}


class TestStoringARun:
    def test_every_row_of_a_run_passes_accept_first(self) -> None:
        """Whoever makes a run's row has it made tokens before it is stored."""
        makers = places_of("in_session") | places_of("alone") | places_of("of_agent")
        assert makers - {"runs/resolve.py"} == {"runs/endpoints.py", "agents/triggers.py", "agents/children.py"}
        assert places_of("accept") - {"providers/answer.py"} == {
            "runs/service.py",
            "agents/triggers.py",
            "agents/children.py",
        }
        made = ast.unparse(TREES["agents/triggers.py"])
        assert made.count(".of_agent(") == made.count("redactions.accept(row, db)") == 2
