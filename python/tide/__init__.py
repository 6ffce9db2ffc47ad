"""TIDE: collectives that read every tensor where the model stores it and write every result at its final address.

`tide.fsdp.enable(model)` is what a training script needs; Session is the layer below it.
"""

from tide._error import Error
from tide._tide import Layout, Session, __version__

__all__ = ["Error", "Layout", "Session", "__version__"]
