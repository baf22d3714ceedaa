# The extension module: its public members are in `__init__.pyi`.
from typing import Any

def __getattr__(name: str) -> Any: ...
