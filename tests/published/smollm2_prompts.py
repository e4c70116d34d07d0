"""200 prompts of ten kinds for SmolLM2-135M-Instruct: chats, continued prose and code, and texts nobody tidied up."""

from __future__ import annotations

__all__ = ["PROMPTS", "chat"]

COUNTRIES = [
    "France",
    "Italy",
    "Japan",
    "Brazil",
    "Canada",
    "Egypt",
    "Norway",
    "Spain",
    "Kenya",
    "India",
    "Mexico",
    "Poland",
    "Greece",
    "Turkey",
    "Peru",
    "China",
    "Portugal",
    "Sweden",
    "Cuba",
    "Ireland",
]
TOPICS = [
    "gravity",
    "photosynthesis",
    "inflation",
    "democracy",
    "a black hole",
    "the water cycle",
    "machine learning",
    "evolution",
    "a vaccine",
    "the internet",
    "a volcano",
    "plate tectonics",
    "a prime number",
    "electricity",
    "the Roman Empire",
    "jazz",
    "chess",
    "an atom",
    "tea",
    "sleep",
]
SYSTEMS = (
    "You are a helpful assistant.",
    "You are a pirate.",
    "Answer in one word.",
    "You are a strict teacher of physics.",
)
THINGS = [
    "fruits",
    "rivers",
    "planets",
    "metals",
    "composers",
    "insects",
    "colours",
    "languages",
    "sports",
    "flowers",
    "mountains",
    "oceans",
    "gases",
    "painters",
    "birds",
    "tools",
    "vegetables",
    "deserts",
    "inventions",
    "cheeses",
]
OPENINGS = [
    "In 1969, NASA",
    "Once upon a time, in a small village,",
    "The recipe for bread is simple:",
    "Dear Sir or Madam,",
    "The stock market fell on Monday after",
    "It was a dark and stormy night;",
    "To install the package, run",
    "The three laws of motion are",
    "According to the report,",
    "She opened the door and",
    "Abstract. We present",
    "The capital of Australia is",
    "Roses are red,",
    "BREAKING:",
    "The mitochondria is",
    "Chapter 1\n\n",
    "To be, or not to be,",
    "The human heart has",
    "Ingredients:\n- 2 cups of flour\n",
    "In this tutorial, you will learn",
]
CODE = [
    "def fibonacci(n):\n",
    "import numpy as np\n\n",
    "class Stack:\n    def __init__(self):\n",
    "SELECT name FROM users WHERE",
    "for i in range(10):\n",
    "#include <stdio.h>\n\nint main() {\n",
    "function add(a, b) {\n",
    "<html>\n<head>\n",
    "git commit -m",
    "def is_prime(n):\n",
    "while True:\n    try:\n",
    "const express = require(",
    "public static void main(",
    "@dataclass\nclass Point:\n",
    "if __name__ == ",
    "x = [1, 2, 3]\ny = ",
    "try:\n    with open(",
    "#!/bin/bash\n\n",
    "package main\n\nimport ",
    "fn main() {\n    let ",
]
PHRASES = [
    "Good morning",
    "Where is the station?",
    "I love you",
    "How much is it?",
    "The cat sleeps",
    "Thank you very much",
    "I am hungry",
    "See you tomorrow",
    "The book is red",
    "Happy birthday",
    "It is raining",
    "My name is Anna",
    "I do not understand",
    "Help!",
    "The sea is blue",
    "What time is it?",
    "Two coffees, please",
    "Good night",
    "I live in Rome",
    "The train is late",
]
UNTIDY = (
    " |\n\n\n|   leading spaces|tabs\t\tand\ttabs|ALL CAPS ARE LOUD|ünïcödé tëxt|日本の首都は|Москва — это|🙂🙂🙂|"
    '{"name": "Alice", "age":|a,b,c\n1,2,3\n4,|https://www.|....|1 2 3 4 5|<|im_start|>|[INST] hello [/INST]|'
    "\\n\\n escaped|'single' \"double\" `back`|word" + "word" * 40 + "|the the the the the the the"
)


def chat(*turns: tuple[str, str]) -> str:
    """ChatML, as the model's template writes it, up to where the assistant speaks."""
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"


def _untidy() -> list[str]:
    # The control token's own bars are no separators.
    texts = UNTIDY.replace("<|im_start|>", "\0").split("|")
    return [text.replace("\0", "<|im_start|>") for text in texts]


def _prompts() -> list[str]:
    helpful = ("system", SYSTEMS[0])
    prompts = [chat(helpful, ("user", f"What is the capital of {country}?")) for country in COUNTRIES]
    prompts += [chat(helpful, ("user", f"Explain {topic} in two sentences.")) for topic in TOPICS]
    prompts += [chat(("system", SYSTEMS[i % 4]), ("user", f"Tell me about {topic}.")) for i, topic in enumerate(TOPICS)]
    prompts += OPENINGS
    prompts += CODE
    prompts += [chat(helpful, ("user", f"Name five {things}.")) for things in THINGS]
    prompts += [chat(helpful, ("user", f"What is {17 * i % 90} + {31 * i % 70}?")) for i in range(1, 21)]
    prompts += [chat(helpful, ("user", f"Translate to French: {phrase}")) for phrase in PHRASES]
    for country, things in zip(COUNTRIES, THINGS, strict=True):
        before = (("user", f"I am from {country}."), ("assistant", f"{country} is a nice place."))
        prompts.append(chat(helpful, *before, ("user", f"Which {things} do we have there?")))
    return prompts + _untidy()


PROMPTS = tuple(_prompts())
"""The last 20 are raw text; so are 60 to 99. The rest are chats."""
