"""Recall and false alarms of redaction by kind, and what it costs. Times are of the processor, not the clock."""

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence

from app.redaction import recogniser
from app.redaction.redactor import Redactor
from app.redaction.restorer import StreamRestorer
from app.redaction.vault import SessionVault
from bench.redaction.corpus import DICTIONARY, Sentence, sentences

ROUNDS = 5


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.redaction", description=__doc__)
    options.add_argument(
        "--misses", action="store_true", help="show what was missed or taken wrongly, of the tuned half only"
    )
    options.add_argument("--names", action="store_true", help="with the model for names (the extra `rondo[ner]`)")
    arguments = options.parse_args()
    if arguments.names:
        recogniser.start()
    with_values, without = sentences(), sentences("_lookalikes")
    values = sum(len(sentence.values) for sentence in with_values)
    print(f"{len(with_values)} sentences with {values} values, {len(without)} with look-alikes, in six languages\n")
    for held_out in (False, True):
        half = [sentence for sentence in with_values if sentence.held_out is held_out]
        look_alikes = [sentence for sentence in without if sentence.held_out is held_out]
        print("held out" if held_out else "tuned on")
        report(half, look_alikes, show=arguments.misses and not held_out)
    costs(with_values + without)


def report(with_values: Sequence[Sentence], look_alikes: Sequence[Sentence], *, show: bool) -> None:
    """A value counts as found if no character of it stays, under whatever label."""
    wanted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    right: Counter[str] = Counter()
    false: Counter[str] = Counter()
    for sentence in (*with_values, *look_alikes):
        _, spans = Redactor(SessionVault(), DICTIONARY, recogniser.looking()).found(sentence.text)
        for start, end, label in sentence.values:
            hit = set(range(start, end)) <= {at for span in spans for at in range(span.start, span.end)}
            wanted[label] += 1
            found[label] += hit
            right[label] += any(span.start == start and span.end == end and span.label == label for span in spans)
            if show and not hit:
                print(f"  missed {label}: {sentence.text[start:end]!r} in {sentence.text!r}")
        for span in spans:
            if not any(span.start < end and start < span.end for start, end, _ in sentence.values):
                false[span.label] += 1
                if show:
                    print(f"  false {span.label}: {sentence.text[span.start : span.end]!r} in {sentence.text!r}")
    print(f"  {'kind':6} {'values':>6} {'found':>6} {'recall':>7} {'label and bounds':>17} {'false':>6}")
    for label in sorted(wanted | false):
        row(label, wanted[label], found[label], right[label], false[label])
    row("all", wanted.total(), found.total(), right.total(), false.total())
    print()


def row(label: str, wanted: int, found: int, right: int, false: int) -> None:
    recall = f"{100 * found / wanted:6.1f}%" if wanted else "      -"
    print(f"  {label:6} {wanted:6} {found:6} {recall:>7} {right:17} {false:6}")


def costs(of: Sequence[Sentence]) -> None:
    texts = [sentence.text for sentence in of]
    chars = sum(map(len, texts))
    each = best(lambda: redact_each(texts))
    long = " ".join(texts)
    whole = best(lambda: Redactor(SessionVault(), DICTIONARY, recogniser.looking()).redact(long))
    prose = "The flat is on the third floor and has a view over the park, which the owner likes to point out. " * 100
    plain = best(lambda: Redactor(SessionVault(), DICTIONARY, recogniser.looking()).redact(prose))
    print("cost")
    print(f"  a sentence by itself     {1e3 * each / len(texts):7.3f} ms")
    print(f"  sentences, per 1,000     {1e6 * each / chars:7.3f} ms")
    print(f"  one long text, per 1,000 {1e6 * whole / len(long):7.3f} ms")
    print(f"  prose, per 1,000         {1e6 * plain / len(prose):7.3f} ms")
    streams(long)


def streams(text: str) -> None:
    """What restoring adds to one delta of four characters, against handing it on."""
    vault = SessionVault()
    redacted = Redactor(vault, DICTIONARY, recogniser.looking()).redact(text)
    deltas = [redacted[at : at + 4] for at in range(0, len(redacted), 4)]

    def restored() -> None:
        stream = StreamRestorer(vault)
        for delta in deltas:
            stream.feed(delta)
        stream.flush()

    print(f"  a delta of a stream      {1e6 * best(restored) / len(deltas):7.3f} µs")


def redact_each(texts: Sequence[str]) -> None:
    redactor = Redactor(SessionVault(), DICTIONARY, recogniser.looking())
    for text in texts:
        redactor.redact(text)


def best(work: Callable[[], object]) -> float:
    """Seconds of the processor, the median of some rounds."""
    times = []
    for _ in range(ROUNDS):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times)


if __name__ == "__main__":
    main()
