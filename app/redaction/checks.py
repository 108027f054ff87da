"""Check digits. Every function takes the characters alone, without separators, letters in capitals."""

from collections import Counter

_DNI = "TRWAGMYFPDXBNJZSQVHLCKE"
_ITALIAN_ODD = dict(
    zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25,
        24, 23), strict=True)
)  # fmt: skip
_ITALIAN_ODD |= {str(digit): _ITALIAN_ODD[letter] for digit, letter in enumerate("ABCDEFGHIJ")}


def luhn(digits: str) -> bool:
    """ISO/IEC 7812: cards, SIREN and SIRET, partita IVA."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        number = int(digit) * (1 + place % 2)
        total += number - 9 if number > 9 else number
    return total % 10 == 0


def iso_97(text: str) -> bool:
    """ISO 7064 mod 97-10 as an IBAN has it: country and check digits in front."""
    return int("".join(str(int(char, 36)) for char in text[4:] + text[:4])) % 97 == 1


def iso_11_10(digits: str) -> bool:
    """ISO 7064 mod 11,10: German tax and VAT numbers."""
    product = 10
    for digit in digits[:-1]:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[-1])


def spanish_dni(text: str) -> bool:
    """DNI, and NIE with its X, Y, Z as 0, 1, 2."""
    number = text[:-1].replace("X", "0").replace("Y", "1").replace("Z", "2")
    return _DNI[int(number) % 23] == text[-1]


def spanish_cif(text: str) -> bool:
    """A company's number: a letter, seven digits, and a control digit or letter, as its kind has it."""
    doubled = sum(sum(divmod(2 * int(digit), 10)) for digit in text[1:8:2])
    control = -(doubled + sum(int(digit) for digit in text[2:8:2])) % 10
    letter, digit = "JABCDEFGHI"[control], str(control)
    if text[0] in "NPQRSW":
        return text[8] == letter
    return text[8] == digit if text[0] in "ABEH" else text[8] in (letter, digit)


def portuguese_nif(digits: str) -> bool:
    total = sum((9 - place) * int(digit) for place, digit in enumerate(digits[:8]))
    return digits[0] in "1235689" and (11 - total % 11) % 11 % 10 == int(digits[8])


def portuguese_card(text: str) -> bool:
    """Cartão de cidadão: eight digits, a check digit, two letters or digits, a check digit over all."""
    total = 0
    for place, char in enumerate(reversed(text)):
        number = int(char, 36) * (1 + place % 2)
        total += number - 9 if place % 2 and number > 9 else number
    return total % 10 == 0


def french_nir(text: str) -> bool:
    """Social security number, Corsica's 2A and 2B among them."""
    number = int(text[:13].replace("2A", "19").replace("2B", "18"))
    return 97 - number % 97 == int(text[13:])


def french_vat(digits: str) -> bool:
    """The eleven digits after `FR`: a key, then the SIREN."""
    return luhn(digits[2:]) and int(digits[:2]) == (12 + 3 * (int(digits[2:]) % 97)) % 97


def italian_code(text: str) -> bool:
    """Codice fiscale, also where letters stand for digits."""
    odd = sum(_ITALIAN_ODD[char] for char in text[0:15:2])
    even = sum(int(char) if char.isdigit() else ord(char) - 65 for char in text[1:15:2])
    return chr(65 + (odd + even) % 26) == text[15]


def german_tax_id(digits: str) -> bool:
    """Of the first ten digits exactly one stands there twice or three times."""
    repeated = [times for times in Counter(digits[:10]).values() if times > 1]
    return digits[0] != "0" and len(repeated) == 1 and repeated[0] <= 3 and iso_11_10(digits)


def british_nino(text: str) -> bool:
    prefix = text[:2]
    refused = prefix in {"BG", "GB", "NK", "KN", "TN", "NT", "ZZ"} or prefix[0] in "DFIQUV" or prefix[1] in "DFIQUVO"
    return not refused and text[8] in "ABCD"


def american_ssn(digits: str) -> bool:
    """It has no check digit, but numbers that are never given out."""
    return digits[:3] not in {"000", "666"} and digits[0] != "9" and digits[3:5] != "00" and digits[5:] != "0000"


def brazilian_cpf(digits: str) -> bool:
    return len(set(digits)) > 1 and all(_brazilian(digits, at, range(at + 1, 1, -1)) for at in (9, 10))


def brazilian_cnpj(digits: str) -> bool:
    weights = (6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2)
    return len(set(digits)) > 1 and all(_brazilian(digits, at, weights[13 - at :]) for at in (12, 13))


def _brazilian(digits: str, at: int, weights: range | tuple[int, ...]) -> bool:
    total = sum(weight * int(digit) for weight, digit in zip(weights, digits[:at], strict=True))
    return 10 * total % 11 % 10 == int(digits[at])
