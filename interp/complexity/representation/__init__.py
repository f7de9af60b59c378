"""What order representations have: by value, by cluster, by target, and their projections for pictures."""

from interp.complexity.representation.clusters import ClusterScore, cluster_score
from interp.complexity.representation.order import ValueOrder, order_of_values
from interp.complexity.representation.projection import Projected, project_pca, project_tsne, project_umap
from interp.complexity.representation.targets import TargetCosine, target_cosine

__all__ = [
    "ClusterScore",
    "Projected",
    "TargetCosine",
    "ValueOrder",
    "cluster_score",
    "order_of_values",
    "project_pca",
    "project_tsne",
    "project_umap",
    "target_cosine",
]
