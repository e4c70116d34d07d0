"""Output that follows a schema or a grammar: token masks made with llguidance.

    formats.py       Regex, Choice, Lark, GBNF: what callers ask for
    compiler.py      GrammarCompiler: a format becomes a constraint; a cache of what was compiled
    matcher.py       GrammarConstraint: masks and forced tokens of one answer
    vocabulary.py    the model's vocabulary as llguidance reads it

The names below are imported when they are first used: most requests ask for no format.
"""
