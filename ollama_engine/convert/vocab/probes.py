"""Texts that pre-tokenizers cut differently: each line tells at least two rows of the table apart.

A test holds that all rows which differ at all differ here.
"""

from __future__ import annotations

__all__ = ["PROBES"]

PROBES = (
    "Hello, world! It's a test; we'll see what they've done, I'm sure he'd know you're it. THEY'LL 'S 'tis can't'",
    "1 12 123 1234 12345 123456 1234567 3.14 1,000,000 0x1F a1b2 2nd ٣٤٥٦ ²³ ½ Ⅷ १२३४ 123abc 12 345",
    "  leading   runs    of spaces \t tabs\t\tand\n\nnew lines\r\n\r\n  \n x\n  y\n",
    "trailing spaces   ",
    "\n\n\n   \n a\n\n b",
    "x = foo(bar[0], {'k': \"v\"}) -> int: // comment /* block */ #tag @user a_b __init__ path/to/file.py\n/x\n//\n",
    "camelCase PascalCase HTTPServer iPhone XMLHttpRequest ABCdef abcDEF aB Ab ÄÖü éÉ Ǆǅǆ",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם مرحبا بالعالم हिन्दी में पाठ ไทย ภาษา",
    "中文字符 混合 English 文本。日本語のテキスト、カタカナ、ひらがな。한국어 텍스트 ㄅㄆㄇ 々 〇 ⺀ ﾊﾝｶｸ 𠀀",
    "e\u0301 a\u0308o\u0308 n\u0303 z\u0338 \u0301x कि नि é\u0301 A\u030a",
    "🚀🦙😶\u200d🌫️ ✅👍🏽 emoji🎉text 🇩🇪",
    "!!! ??? ... --- === *** ((())) [[]] {{}} <<>> $$$ ^^^ ~~~ ||| ``` +-*/ a+b=c $5 €6 ¥7 £8 ©® §¶ °",
    "« guillemets » “quotes” ‘single’ — dash – en… ellipsis ！全角？：；（）「」、。 ··",
    "word\u00a0nbsp\u2003em\u3000ideographic\u2028line\u2029para\u200bzero\ufeffbom \x00\x01\x1f\x7f\x85",
    "!abc .def ,ghi (jkl) [mno] #pqr $stu %vwx &yz *abc /def :ghi _jkl \"mno\" 'pqr' -stu +vwx =yz",
    "ſ'ſ 'S 'T 'Re 'vE 'LL 'd's",
    "rock'test o'tis a'reborn y'llama x'Very X'MORE é'dont",
    "a  12   345\t6 \n7  \n\n  89 -1  +22  (333)  4444",
    " \u0915\u094d\u0937 a\u20ddb 1\u20e3 \u1100\u1161\u11a8 ꯍ꯲ Ꭰꭰ ა Ა Ⴀ ՞Ա",
)
