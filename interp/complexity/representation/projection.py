"""States in the plane, for pictures: principal components, t-SNE, and UMAP.

A projection is a picture and no evidence: `cluster_score`, `target_cosine` and `order_of_values` measure the states
themselves. Principal components keep distances as well as a linear map can; t-SNE (van der Maaten & Hinton 2008) and
UMAP (McInnes, Healy & Melville 2018, arXiv 1802.03426) keep neighbours; their distances and the sizes of their clusters
mean nothing. UMAP is in a package of its own: `pip install 'interp-toolkit[umap]'`.

>>> import torch
>>> flat = torch.tensor([[0.0, 0.0, 3.0], [2.0, 0.0, 3.0], [4.0, 0.0, 3.0]])
>>> projected = project_pca(flat, n_components=1)
>>> projected.coordinates.ravel().round(6).tolist(), projected.explained.tolist()
([-2.0, 0.0, 2.0], [1.0])
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from torch import Tensor

from interp.complexity.representation.shared import as_states
from interp.errors import InputError
from tasks.seeding import derive_seed


@dataclass(frozen=True, kw_only=True, eq=False)
class Projected:
    """Coordinates of states on their principal components."""

    coordinates: Float[np.ndarray, "state component"]
    """The states, centred."""
    explained: Float[np.ndarray, "component"]
    """Share of the variance on each component."""

    def __repr__(self) -> str:
        shares = ", ".join(f"{share:.0%}" for share in self.explained)
        return f"Projected({shares} of the variance; n={len(self.coordinates)} states)"


def project_pca(states: Float[Tensor, "state d_model"], *, n_components: int = 2) -> Projected:
    """The states on their first principal components.

    A component's sign is free: it is chosen so that the entry of its direction that is largest in size is positive.
    """
    x = as_states(states)
    if not 1 <= n_components <= min(x.shape):
        raise InputError(
            f"n_components={n_components} was asked of {len(x)} states of width {x.shape[1]}; give 1 to {min(x.shape)}."
        )
    coordinates, explained = principal_components(x, n_components)
    return Projected(coordinates=coordinates, explained=explained)


def project_tsne(
    states: Float[Tensor, "state d_model"], *, perplexity: float | int = 12, seed: int = 0
) -> Float[np.ndarray, "state 2"]:
    """The states in the plane by scikit-learn's t-SNE, begun from the principal components; 12 is the papers' perplexity."""
    x = as_states(states)
    if not 0 < perplexity < len(x):
        raise InputError(
            f"perplexity={perplexity} was asked of {len(x)} states; it must lie between 0 and their number."
        )
    from sklearn.manifold import TSNE  # a second to import, and few need it

    plane = TSNE(perplexity=perplexity, init="pca", random_state=derive_seed(seed, "t-SNE") % 2**32)
    return plane.fit_transform(x).astype(np.float64)


def project_umap(
    states: Float[Tensor, "state d_model"], *, n_neighbors: int = 15, seed: int = 0
) -> Float[np.ndarray, "state 2"]:
    """The states in the plane by umap-learn's UMAP with its defaults; `InputError` where that isn't installed."""
    x = as_states(states)
    if not 2 <= n_neighbors < len(x):
        raise InputError(
            f"n_neighbors={n_neighbors} was asked of {len(x)} states; give at least 2 and fewer than there are states."
        )
    try:
        from umap import UMAP  # an extra, which compiles half a minute when it is first used
    except ImportError as error:
        raise InputError(
            f"UMAP needs the package umap-learn, which can't be imported ({error}): pip install 'interp-toolkit[umap]'."
        ) from error
    plane = UMAP(n_neighbors=n_neighbors, random_state=derive_seed(seed, "UMAP") % 2**32, n_jobs=1)
    return plane.fit_transform(x).astype(np.float64)


def principal_components(
    x: Float[np.ndarray, "state d_model"], n: int
) -> tuple[Float[np.ndarray, "state component"], Float[np.ndarray, "component"]]:
    """(coordinates on the first `n` components, their shares of the variance)."""
    left, s, right = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)
    sign = np.sign(right[np.arange(len(right)), np.abs(right).argmax(axis=1)])
    variance = np.square(s)
    return (left * s * sign)[:, :n], (variance / max(variance.sum(), np.finfo(float).tiny))[:n]
