"""What each number of the section on trees is."""

from analyses.report.page import Definition

_PAPERS = "Murty, Sharma, Andreas & Manning, arXiv 2211.01288 and 2305.18741"
DEFINITIONS = (
    Definition(
        name="c(i, j)",
        formula="cos(ṽ, v): v is the sum of the states of the words i to j − 1, ṽ the same where every query reads only "
        "these words and the first token",
        source=_PAPERS,
        docs="trees",
    ),
    Definition(
        name="its own trees",
        formula="from the root down, each span split at the k with the largest c(i, k) + c(k, j)",
        source=f"{_PAPERS}, Algorithm 1",
        docs="trees",
    ),
    Definition(
        name="equation 2",
        formula="Σ c over the spans of the tree − its mean over random trees, exact",
        source="arXiv 2211.01288, equation 2, without sampling; random trees by uniform splits, or each alike",
        docs="trees",
    ),
    Definition(
        name="published code",
        formula="Σ over the tree's nodes of c of both parts − the same for one random split; in closed form, for the mean split",
        source="public code of arXiv 2305.18741, with a seed",
        docs="trees",
    ),
    Definition(
        name="phrases above other spans",
        formula="mean over the gold brackets of c(i, j) − mean c(i, j') over j' ≠ j, and − mean c(i', j) over i' ≠ i; spans of "
        "two words or more that don't begin the sentence",
        source="this library; in random order the tree stays where it was",
        docs="trees",
    ),
    Definition(
        name="F1",
        formula="gold brackets found / gold brackets, of all sentences together; without the root, which every tree has",
        source="PARSEVAL, Black et al. 1991; both trees are binary, so precision and recall are equal",
        docs="trees",
    ),
    Definition(
        name="p",
        formula="share of random flips of the sentences' signs whose largest mean over layers reaches the observed difference",
        source="Westfall & Young 1993",
        docs="trees",
    ),
)
