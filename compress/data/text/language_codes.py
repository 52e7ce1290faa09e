"""Codes of languages, such as `en`, in what data and model cards say of themselves."""

from __future__ import annotations

import re

MOST = 200
_CODE = re.compile(r"[a-z]{2,3}(?:-[A-Za-z0-9]{2,8})*|multilingual")


def find_language_codes(said: str) -> tuple[str, ...]:
    """The codes in a text such as `[en, zh-Hans]`; everything else in it is left out."""
    words = (word.strip("-") for word in re.findall(r"[\w-]+", said))
    return tuple(dict.fromkeys(word for word in words if _CODE.fullmatch(word)))[:MOST]
