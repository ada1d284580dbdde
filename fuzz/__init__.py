"""Coverage-guided fuzzing of everything that reads what callers send: `make fuzz`.

Each target is a function of bytes that raises if the relay does anything it should not. Targets need no fuzzer, only
`fuzz.one` does: tests/test_fuzz_corpus.py calls them with the inputs that earlier runs found worth keeping.
"""
