"""`python -m tidegate_cli`, the same as `tidegate`."""

from __future__ import annotations

from .main import main

main()
