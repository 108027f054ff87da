"""Redaction over HTTP (contract, section 8; the table of its design)."""

from tests.contract.wires import Wire

MARIA = {"type": "PER", "value": "María García"}
ON = {"enabled": True, "dictionary": [MARIA]}
SAID = "Soy María García, DNI 12345678Z, correo maria@ejemplo.es y tel 612 345 678."
TOKENS = "Soy «PER_1», DNI «ID_1», correo «EMAIL_1» y tel «TEL_1»."


class TestATurn:
    async def test_the_model_is_sent_tokens_and_the_caller_reads_values(self, wire: Wire) -> None:
        session = await wire.api.new_session(redaction=ON)
        played = await wire.play("Hola «PER_1», escribo a «EMAIL_1».", session=session, input=SAID)
        assert wire.prose()[-1] == ("user", TOKENS)
        assert played.run["output"] == "Hola María García, escribo a maria@ejemplo.es."
        assert [message["content"] for message in played.messages] == [SAID, played.run["output"]]
        shown = "".join(event["text"] for event in played.of("message.delta"))
        assert shown == played.run["output"]
        assert played.of("message.completed")[0]["message"]["content"] == played.run["output"]
