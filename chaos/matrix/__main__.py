"""`python -m chaos.matrix`: see `runner.py`."""

from __future__ import annotations

from chaos.matrix.runner import main

if __name__ == "__main__":
    main()
