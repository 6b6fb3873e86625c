"""Passwords in URLs: noticed, and kept out of whatever is written or shown."""

from __future__ import annotations

import re

_USERINFO = re.compile(r"(://[^/?#\s:@]*):\S*@")
"""Up to the last @, as a password may hold one itself; rather too much is hidden than too little."""

_PARAMETER = re.compile(r"([?&](?:password|sslpassword|passwd)=)[^&\s]*", re.IGNORECASE)


def hidden(text: str) -> str:
    """The text with `***` for every password of a URL in it."""
    return _PARAMETER.sub(r"\1***", _USERINFO.sub(r"\1:***@", text))


def has_password(url: str) -> bool:
    """Whether a URL carries a password, before its host or among its parameters."""
    return hidden(url) != url


def without_userinfo(url: str) -> str:
    """The URL without user and password."""
    return re.sub(r"://\S*@", "://", url, count=1)
