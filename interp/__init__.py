"""How does a transformer get its answers? Load or build a hooked model, intervene on it, measure it.

Everything a user types is here, and each name is imported when it is first used, so `import interp` costs no torch.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=20, n_ctx=32, attn_only=True, seed=0)
>>> interp.score_heads(model, n_sequences=4, segment=5, seed=0).induction.shape
(2, 2)
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "AblationMode": "interp.interventions.ablate",
    "AttentionSparsity": "interp.complexity.sparsity",
    "AttributionResult": "interp.interventions.attribution_result",
    "Behaviour": "interp.solutions.behaviour",
    "Bridge": "interp.bridge.find",
    "BridgeComparison": "interp.bridge.overlap",
    "BridgeSweep": "interp.bridge.result",
    "Charts": "interp.trees.charts",
    "ChoiceScores": "interp.prompts.choices",
    "ClusterScore": "interp.complexity.representation",
    "Complexity": "interp.complexity.measure",
    "Condensation": "interp.complexity.condensation",
    "CopyingEigenvalues": "interp.circuits.copying",
    "DivergedError": "interp.errors",
    "EmbeddingOverlap": "interp.bridge.embedding",
    "HeadConfirmation": "interp.heads.confirm",
    "HeadScores": "interp.heads.scores",
    "HeadShuffle": "interp.bridge.shuffle",
    "HookLeakError": "interp.errors",
    "InductionTable": "interp.circuits.induction_result",
    "InformationFlow": "interp.interventions.flow_result",
    "Initialisation": "interp.models.initialise",
    "InputError": "interp.errors",
    "KnockOutMode": "interp.interventions.knock_out",
    "LayerFactors": "interp.circuits.factors",
    "Mechanism": "interp.solutions.mechanism_result",
    "PairScores": "interp.circuits.pair_result",
    "PartOverlaps": "interp.bridge.overlap_parts",
    "PatchResult": "interp.interventions.patch_result",
    "PathPatchResult": "interp.interventions.path_result",
    "Projection": "interp.interventions.project",
    "Provenance": "interp.models.provenance",
    "RankedRemoval": "interp.prompts.removal_result",
    "Representation": "interp.solutions.representation",
    "Solution": "interp.solutions.classify",
    "TargetCosine": "interp.complexity.representation",
    "Thresholds": "interp.solutions.thresholds",
    "TrainConfig": "interp.training.config",
    "TreeProjections": "interp.trees.projections",
    "ValueOrder": "interp.complexity.representation",
    "WeightNorms": "interp.complexity.norms",
    "ablate_heads": "interp.interventions.ablate",
    "add_hooks": "interp.interventions.hooks",
    "answer_log_probability": "interp.interventions.metrics",
    "attention_sparsity": "interp.complexity.sparsity",
    "attribution_patch": "interp.interventions.attribution",
    "build": "interp.models.build",
    "classify_solution": "interp.solutions.classify",
    "cluster_score": "interp.complexity.representation",
    "compare_brackets": "interp.trees.brackets",
    "compare_bridges": "interp.bridge.overlap",
    "compare_induction": "interp.circuits.induction_table",
    "compare_part_bridges": "interp.bridge.overlap_parts",
    "compare_with_embedding": "interp.bridge.embedding",
    "condense": "interp.complexity.condensation",
    "confirm_heads": "interp.heads.confirm",
    "copying_eigenvalues": "interp.circuits.copying",
    "decode_greedily": "interp.models.decode",
    "exclude_prefixes": "interp.trees.project",
    "find_bridge": "interp.bridge.find",
    "find_tokens": "interp.interventions.select",
    "follow_bridge": "interp.bridge.over_training",
    "get_provenance": "interp.models.provenance",
    "information_flow": "interp.interventions.information_flow",
    "kl_to_clean": "interp.interventions.metrics",
    "knock_out_attention": "interp.interventions.knock_out",
    "load": "interp.models.load",
    "logit_difference": "interp.interventions.metrics",
    "mask_tokens": "interp.interventions.knock_out",
    "measure_behaviour": "interp.solutions.behaviour",
    "measure_charts": "interp.trees.charts",
    "measure_complexity": "interp.complexity.measure",
    "measure_mechanism": "interp.solutions.mechanism",
    "measure_norms": "interp.complexity.norms",
    "measure_over_training": "interp.complexity.over_training",
    "measure_representation": "interp.solutions.representation",
    "order_of_values": "interp.complexity.representation",
    "patch": "interp.interventions.patch",
    "patch_paths": "interp.interventions.path_patch",
    "project": "interp.interventions.project",
    "project_cky": "interp.trees.project",
    "project_greedy": "interp.trees.project",
    "project_pca": "interp.complexity.representation",
    "project_trees": "interp.trees.projections",
    "project_tsne": "interp.complexity.representation",
    "project_umap": "interp.complexity.representation",
    "read_factors": "interp.circuits.factors",
    "remove_ranked_heads": "interp.prompts.removal",
    "rotate_keys": "interp.circuits.factors",
    "save": "interp.models.checkpoint",
    "score_choices": "interp.prompts.choices",
    "score_heads": "interp.heads.scores",
    "score_pairs": "interp.circuits.pairs",
    "score_trees": "interp.trees.scores",
    "show_attention": "interp.figures.attention",
    "show_heads": "interp.heads.show",
    "shuffle_heads": "interp.bridge.shuffle",
    "sweep_bridge": "interp.bridge.sweep",
    "target_cosine": "interp.complexity.representation",
    "train": "interp.training.loop",
    "train_many": "interp.training.many",
}
_SUBPACKAGES = frozenset(
    {
        "bridge",
        "circuits",
        "complexity",
        "errors",
        "figures",
        "heads",
        "interventions",
        "models",
        "prompts",
        "records",
        "solutions",
        "statistics",
        "training",
        "trees",
    }
)
_SIBLINGS = frozenset({"tasks", "analyses"})

__all__ = sorted([*_HOMES, *_SIBLINGS, *_SUBPACKAGES])

if TYPE_CHECKING:
    import analyses as analyses
    import tasks as tasks
    from interp import figures as figures
    from interp import records as records
    from interp.bridge.embedding import EmbeddingOverlap as EmbeddingOverlap
    from interp.bridge.embedding import compare_with_embedding as compare_with_embedding
    from interp.bridge.find import Bridge as Bridge
    from interp.bridge.find import find_bridge as find_bridge
    from interp.bridge.over_training import follow_bridge as follow_bridge
    from interp.bridge.overlap import BridgeComparison as BridgeComparison
    from interp.bridge.overlap import compare_bridges as compare_bridges
    from interp.bridge.overlap_parts import PartOverlaps as PartOverlaps
    from interp.bridge.overlap_parts import compare_part_bridges as compare_part_bridges
    from interp.bridge.result import BridgeSweep as BridgeSweep
    from interp.bridge.shuffle import HeadShuffle as HeadShuffle
    from interp.bridge.shuffle import shuffle_heads as shuffle_heads
    from interp.bridge.sweep import sweep_bridge as sweep_bridge
    from interp.circuits.copying import CopyingEigenvalues as CopyingEigenvalues
    from interp.circuits.copying import copying_eigenvalues as copying_eigenvalues
    from interp.circuits.factors import LayerFactors as LayerFactors
    from interp.circuits.factors import read_factors as read_factors
    from interp.circuits.factors import rotate_keys as rotate_keys
    from interp.circuits.induction_result import InductionTable as InductionTable
    from interp.circuits.induction_table import compare_induction as compare_induction
    from interp.circuits.pair_result import PairScores as PairScores
    from interp.circuits.pairs import score_pairs as score_pairs
    from interp.complexity.condensation import Condensation as Condensation
    from interp.complexity.condensation import condense as condense
    from interp.complexity.measure import Complexity as Complexity
    from interp.complexity.measure import measure_complexity as measure_complexity
    from interp.complexity.norms import WeightNorms as WeightNorms
    from interp.complexity.norms import measure_norms as measure_norms
    from interp.complexity.over_training import measure_over_training as measure_over_training
    from interp.complexity.representation import ClusterScore as ClusterScore
    from interp.complexity.representation import TargetCosine as TargetCosine
    from interp.complexity.representation import ValueOrder as ValueOrder
    from interp.complexity.representation import cluster_score as cluster_score
    from interp.complexity.representation import order_of_values as order_of_values
    from interp.complexity.representation import project_pca as project_pca
    from interp.complexity.representation import project_tsne as project_tsne
    from interp.complexity.representation import project_umap as project_umap
    from interp.complexity.representation import target_cosine as target_cosine
    from interp.complexity.sparsity import AttentionSparsity as AttentionSparsity
    from interp.complexity.sparsity import attention_sparsity as attention_sparsity
    from interp.errors import DivergedError as DivergedError
    from interp.errors import HookLeakError as HookLeakError
    from interp.errors import InputError as InputError
    from interp.figures.attention import show_attention as show_attention
    from interp.heads.confirm import HeadConfirmation as HeadConfirmation
    from interp.heads.confirm import confirm_heads as confirm_heads
    from interp.heads.scores import HeadScores as HeadScores
    from interp.heads.scores import score_heads as score_heads
    from interp.heads.show import show_heads as show_heads
    from interp.interventions.ablate import AblationMode as AblationMode
    from interp.interventions.ablate import ablate_heads as ablate_heads
    from interp.interventions.attribution import attribution_patch as attribution_patch
    from interp.interventions.attribution_result import AttributionResult as AttributionResult
    from interp.interventions.flow_result import InformationFlow as InformationFlow
    from interp.interventions.hooks import add_hooks as add_hooks
    from interp.interventions.information_flow import information_flow as information_flow
    from interp.interventions.knock_out import KnockOutMode as KnockOutMode
    from interp.interventions.knock_out import knock_out_attention as knock_out_attention
    from interp.interventions.knock_out import mask_tokens as mask_tokens
    from interp.interventions.metrics import answer_log_probability as answer_log_probability
    from interp.interventions.metrics import kl_to_clean as kl_to_clean
    from interp.interventions.metrics import logit_difference as logit_difference
    from interp.interventions.patch import patch as patch
    from interp.interventions.patch_result import PatchResult as PatchResult
    from interp.interventions.path_patch import patch_paths as patch_paths
    from interp.interventions.path_result import PathPatchResult as PathPatchResult
    from interp.interventions.project import Projection as Projection
    from interp.interventions.project import project as project
    from interp.interventions.select import find_tokens as find_tokens
    from interp.models.build import build as build
    from interp.models.checkpoint import save as save
    from interp.models.decode import decode_greedily as decode_greedily
    from interp.models.initialise import Initialisation as Initialisation
    from interp.models.load import load as load
    from interp.models.provenance import Provenance as Provenance
    from interp.models.provenance import get_provenance as get_provenance
    from interp.prompts.choices import ChoiceScores as ChoiceScores
    from interp.prompts.choices import score_choices as score_choices
    from interp.prompts.removal import remove_ranked_heads as remove_ranked_heads
    from interp.prompts.removal_result import RankedRemoval as RankedRemoval
    from interp.solutions.behaviour import Behaviour as Behaviour
    from interp.solutions.behaviour import measure_behaviour as measure_behaviour
    from interp.solutions.classify import Solution as Solution
    from interp.solutions.classify import classify_solution as classify_solution
    from interp.solutions.mechanism import measure_mechanism as measure_mechanism
    from interp.solutions.mechanism_result import Mechanism as Mechanism
    from interp.solutions.representation import Representation as Representation
    from interp.solutions.representation import measure_representation as measure_representation
    from interp.solutions.thresholds import Thresholds as Thresholds
    from interp.training.config import TrainConfig as TrainConfig
    from interp.training.loop import train as train
    from interp.training.many import train_many as train_many
    from interp.trees.brackets import compare_brackets as compare_brackets
    from interp.trees.charts import Charts as Charts
    from interp.trees.charts import measure_charts as measure_charts
    from interp.trees.project import exclude_prefixes as exclude_prefixes
    from interp.trees.project import project_cky as project_cky
    from interp.trees.project import project_greedy as project_greedy
    from interp.trees.projections import TreeProjections as TreeProjections
    from interp.trees.projections import project_trees as project_trees
    from interp.trees.scores import score_trees as score_trees


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _SIBLINGS:
        value = _import_sibling(name)
    elif name in _SUBPACKAGES:
        value = importlib.import_module(f"interp.{name}")
    else:
        raise AttributeError(f"module 'interp' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _import_sibling(name: str) -> Any:
    """`tasks` or `analyses` of this distribution; a stranger of the same name is refused, not used by accident."""
    module = importlib.import_module(name)
    if getattr(module, "DISTRIBUTION", None) == "interp-toolkit":
        return module
    found = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "an unknown place")
    raise ImportError(
        f"interp needs its own package `{name}`, but Python found another one at {found}; "
        f"rename that file or folder, or start Python from another folder, so that it no longer hides interp's `{name}`."
    )
