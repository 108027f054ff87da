"""The text of rules as a model is sent it."""

from app.rules.block import INTRODUCTION, rules_block


class TestRulesBlock:
    def test_no_rules_are_no_block(self) -> None:
        assert rules_block([]) is None

    def test_each_stands_there_verbatim_in_its_order(self) -> None:
        contents = ["Be brief.", "  Never:\n# this\n<b>`that`</b>\n", "Be brief."]
        block = rules_block(contents)
        assert block is not None
        rest = block
        for content in contents:
            _, found, rest = rest.partition(content)
            assert found == content

    def test_they_are_worded_as_orders_that_nothing_below_lifts(self) -> None:
        block = rules_block(["Be brief."])
        assert block is not None
        assert block.startswith(INTRODUCTION)
        assert "You must follow each of them" in INTRODUCTION
