# ruff: noqa: E501 (wide characters count twice)
"""Texts for Gemma 3 270M: prompts, and paragraphs in ten languages, which long texts are shuffled from."""

from __future__ import annotations

from random import Random

__all__ = ["LANGUAGES", "PROMPTS", "long_text"]

LANGUAGES = {
    "English": "All human beings are born free and equal in dignity and rights. They are endowed with reason and "
    "conscience, and should act towards one another in a spirit of brotherhood. It cost $1,234.56 (isn't that much?).",
    "German": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen "
    "begabt und sollen einander im Geist der Brüderlichkeit begegnen. Straßenbahnhaltestellenschild: 3,5 km.",
    "French": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison et de "
    "conscience et doivent agir les uns envers les autres dans un esprit de fraternité. L'œuvre coûte 12 €.",
    "Spanish": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón y "
    "conciencia, deben comportarse fraternalmente los unos con los otros. ¿Cuánto cuesta el niño?",
    "Russian": "Все люди рождаются свободными и равными в своём достоинстве и правах. Они наделены разумом и совестью и "
    "должны поступать в отношении друг друга в духе братства. Цена — 100 рублей.",
    "Greek": "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι προικισμένοι με "
    "λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα αδελφοσύνης.",
    "Arabic": "يولد جميع الناس أحرارًا متساوين في الكرامة والحقوق. وقد وهبوا عقلاً وضميرًا وعليهم أن يعامل بعضهم بعضًا "
    "بروح الإخاء. السعر ١٢٣ دينارًا.",
    "Hindi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है। उन्हें बुद्धि और अन्तरात्मा की "
    "देन प्राप्त है और परस्पर उन्हें भाईचारे के भाव से बर्ताव करना चाहिए।",
    "Japanese": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを"
    "授けられており、互いに同胞の精神をもって行動しなければならない。価格は１２３円です。",
    "Chinese": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。价格：123元 😀👍🏽。",
}
"""The first article of the Universal Declaration of Human Rights, and a few characters that are cut in other ways."""

PROMPTS = (
    "The capital of France is", "Once upon a time, in a small village,", "def fibonacci(n):\n", "Ingredients:\n- 2 cups",
    "Die Hauptstadt von Italien ist", "Il était une fois", "Столица России —", "日本で一番高い山は", "1, 2, 3, 4,",
    "The three laws of motion are", "#include <stdio.h>\n\nint main() {\n", "Q: What is water made of?\nA:",
)  # fmt: skip


def long_text(language: str, n_words: int) -> str:
    """A paragraph's words (characters, where it has no spaces) in an order drawn by the language's name."""
    paragraph = LANGUAGES[language]
    words = paragraph.split(" ") if paragraph.count(" ") > 10 else [c for c in paragraph if c != " "]
    rng = Random(language)
    pieces = [words[int(rng.random() * len(words))] + (" ", "", "\n", "  ", " ")[int(rng.random() * 5)]
              for _ in range(n_words)]  # fmt: skip
    return "".join(pieces)
