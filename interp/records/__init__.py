"""What was measured, kept: one row a number in Parquet, arrays beside it in safetensors, each cell whole or absent."""

from interp.records.schema import COLUMNS, Measurement, to_frame
from interp.records.store import Cell, Store, write_file

__all__ = ["COLUMNS", "Cell", "Measurement", "Store", "to_frame", "write_file"]
