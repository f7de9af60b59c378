"""The models of a lab that are done."""

from dataclasses import dataclass

from analyses.copying import SPLITS
from analyses.labs.trained import Trained


@dataclass(frozen=True, kw_only=True)
class TrainedCopying(Trained):
    """A model that was trained to copy."""

    @property
    def composes(self) -> bool:
        """Whether there is a layer above another."""
        return int(self.cell.setting.model["n_layers"]) > 1

    def error(self, split: str) -> float:
        """The error on fresh sequences after training."""
        frame = self.record.frame
        return float(
            frame.loc[frame["metric"].eq(f"error, {SPLITS[split]}") & frame["control"].isna(), "value"].iloc[0]
        )
