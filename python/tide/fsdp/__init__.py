"""TIDE under PyTorch FSDP2.

    fully_shard(block); ...; fully_shard(model)
    print(tide.fsdp.enable(model))        # collective: every rank of the model's mesh calls it
    ...                                   # train as before
    tide.fsdp.disable(model)              # collective; optional, stock FSDP2 takes over again

Needs PyTorch 2.11 to 2.13. Groups that TIDE cannot serve run on stock FSDP2; the table names them and says why.
"""

from tide.fsdp.adapter import disable, enable, explain, stats
from tide.fsdp.table import Row, Table

__all__ = ["Row", "Table", "disable", "enable", "explain", "stats"]
