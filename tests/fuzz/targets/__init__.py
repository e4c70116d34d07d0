"""What is fuzzed, a module each, with these names:

    def seeds() -> Iterable[bytes]         inputs that are sound, from which the corpus grows
    WORDS: tuple[bytes, ...]               what the fuzzer may put together
    @contextmanager
    def opened(folder: Path) -> Iterator[Callable[[bytes], bool]]

The callable takes any bytes and says whether they were taken (True) or refused with an error of the package's (False).
Any other exception is a finding, and so is a promise of the docs that does not hold (AssertionError).
"""

NAMES = ("gguf", "grammar", "model", "projector", "session", "template", "tokenizer")
