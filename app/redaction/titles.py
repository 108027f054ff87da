"""Names after an honorific (`Sra.`, `Mr`, `Herr`) or after words by which people introduce themselves."""

import re
from collections.abc import Iterator

from app.redaction.labels import Label, Span, fold, normal_form

_HONORIFIC = (
    r"Sr\.?|Sra\.?|Srta\.?|Sres\.|D\.|D\.?ª|Dª\.?|Dña\.?|Don|Doña|Señor|Señora|Señorita|señor|señora|señorita|don|doña"
    r"|Mr\.?|Mrs\.?|Ms\.?|Miss|Mx\.?|Sir|Lady|Dr\.?|Dra\.?|Dr\.ª|Prof\.?|Profa\.?|Professor|Doctor|Doctora|Doutora?"
    r"|M\.|Mme\.?|Mlle\.?|Monsieur|Madame|Mademoiselle|Maître|Me"
    r"|Herrn?|Frau|Fräulein"
    r"|Sr\.ª|Dona|Dom|Senhora?|Exma?\."
    r"|Sig\.|Sig\.ra|Sig\.na|Signora?|Signorina|signora?|Dott\.|Dott\.ssa|Dottoressa|Dottore?|Avv\.|Ing\."
)
_INTRODUCED = (
    r"[Mm]e llamo|[Mm]i nombre es|[Mm]y name is|[Jj]e m['’]appelle|[Mm]on nom est|[Ii]ch heiße|[Mm]ein Name ist"
    r"|[Cc]hamo-me|[Mm]e chamo|[Oo] meu nome é|[Mm]eu nome é|[Mm]i chiamo|[Ii]l mio nome è"
)
_UPPER = "A-ZÀ-ÖØ-ÞŁŚŠŽĆČŐŰ"
_WORD = rf"(?:[DdLO]['’])?[{_UPPER}][^\W\d_]*+(?:['’\-][{_UPPER}]?[^\W\d_]++)*+|[{_UPPER}]\."
_PARTICLE = r"(?:de la|de las|de los|del|de|da|dos|das|do|di|della|van der|van den|van|von der|von|zu|le|la|y|e|i|bin|al)"
_NAME = re.compile(rf"(?:{_WORD})(?:(?:[ \u00a0]{_PARTICLE})?[ \u00a0](?:{_WORD})){{0,4}}")
_FRONT = re.compile(
    rf"(?<![^\W_])(?<![^\W_]['’])(?:{_HONORIFIC}|{_INTRODUCED})[ \u00a0]{{1,2}}(?=['’DdLO]{{0,2}}[{_UPPER}])"
)
_LETTERS = re.compile(r"[^\W\d_]+")
_FIRST_WORD = """
Sr Sra Srta Sres D Dª Dña Don Doña Señor Señora Señorita señor señora señorita don doña Mr Mrs Ms Miss Mx Sir Lady Dr Dra
Prof Profa Professor Doctor Doctora Doutor Doutora M Mme Mlle Monsieur Madame Mademoiselle Maître Me Herr Herrn Frau Fräulein
Dona Dom Senhor Senhora Ex Exma Sig Signor Signora Signorina signor signora Dott Dottoressa Dottor Dottore Avv Ing
llamo nombre name appelle nom heiße Name chamo Chamo nome chiamo
"""
_FIRST_WORDS = frozenset(_FIRST_WORD.split())
_SPAN_OF_TITLES = re.compile(rf"(?:(?:{_HONORIFIC})[ \u00a0])+")

_NO_NAME = """
presidente presidenta president director directora directeur direktor minister ministro ministre doktor doctor professor prof
profesor juez judge chairman speaker general rector alcalde kollege kollegin rechtsanwalt rechtsanwaltin jury universe world
right wrong perfect online ceo cto vp nota ref dni nif tel email pm mr mrs ms sr sra
i you he she we they it the this that if when and or el la los las un una yo tu si no pero que tambien para por con desde
hasta le les je vous nous ich sie wir
"""
_NO_NAMES = frozenset(_NO_NAME.split())


def titled_names(text: str) -> Iterator[Span]:
    """The capitalised words behind, particles among them; the honorific stays."""
    if _FIRST_WORDS.isdisjoint(_LETTERS.findall(text)):
        return
    done = 0
    for match in _FRONT.finditer(text):
        if match.start() < done:
            continue
        titles = _SPAN_OF_TITLES.match(text, match.end())
        done = titles.end() if titles else match.end()
        name = _NAME.match(text, done)
        if name is None:
            continue
        end = _end_of(name)
        if end > name.start():
            value = text[name.start() : end]
            yield Span(name.start(), end, Label.PER, normal_form(Label.PER, value))


def _end_of(name: re.Match[str]) -> int:
    """Up to the first word that cannot be of a name; a full stop that ends a sentence stays outside."""
    end = name.start()
    for word in re.finditer(r"\S+", name[0]):
        if not (word[0][0].isupper() or "'" in word[0] or "’" in word[0]):
            continue
        if fold(word[0].strip(".")) in _NO_NAMES and word[0] not in ("La", "Le", "Las"):
            break
        end = name.start() + word.end()
    value = name.string[name.start() : end]
    return end - 1 if value.endswith(".") and len(value) < 3 else end
