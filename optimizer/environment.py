"""Environment variables that set options, in a module that is fast to import."""

from __future__ import annotations

STORAGE_VARIABLE = "TRITUNE_STORAGE"
SERVER_URL_VARIABLE = "TRITUNE_SERVER_URL"
