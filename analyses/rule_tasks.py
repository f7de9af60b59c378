"""Does following a rule depend on induction heads, where what is known by heart doesn't? They are removed step by step.

Six tasks of multiple choice: fuzzy copying; indirect objects, called by names and by symbols; classification from
examples, with original, permuted and symbolic labels. Each that the model does above chance is scored again without its
strongest 10, 20, ... induction heads, and without as many random heads of the same layers (after Song, Xu & Zhong, arXiv
2408.09503, section "removing induction heads", whose random heads are drawn over all layers).

    interp report smollm2 --analyses rules
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

from analyses.analysis import Analysis, Cells, Options, Outcome, Part, Subject
from analyses.heads import restore_scores
from analyses.rule_tasks_cells import TASKS, Variant, pack_removal
from analyses.rule_tasks_section import QUESTION, RANDOM_HEADS, write_section
from interp.models.tokens import resolve_bos
from interp.prompts.choices import By, score_choices
from interp.prompts.removal import remove_ranked_heads
from interp.prompts.removal_result import RankedRemoval, RemovalStep
from interp.records.schema import Measurement
from tasks.prompts.rules import ChoiceItem, hash_items
from tasks.seeding import derive_seed
from tasks.task import TaskError

N_DRAWS = 20
N_SHARES = 5
"""Each draw of random heads is scored on a fifth of the items."""
METRICS: dict[By, str] = {
    "per_token": "accuracy",
    "sum": "accuracy by summed log-probability",
    "generated": "generated exactly",
}


def choose_counts(n_heads: int) -> list[int]:
    """10, 20, ... up to one head in nine and at most 50; in a small model steps of a third of that."""
    most = max(1, min(50, n_heads // 9))
    step = 10 if most >= 20 else max(1, most // 3)
    return list(range(step, most + 1, step))


def draw_items(subject: Subject, options: Options, variant: Variant) -> tuple[ChoiceItem, ...]:
    """The items of a task; raises `TaskError` where this tokenizer can't write them or the model can't read them."""
    task = variant.make(subject.model.tokenizer)
    bos = resolve_bos(subject.model, options.bos)
    items = task.sample(options.n_sequences, seed=derive_seed(options.seed, "rules"), bos=bos)
    longest = max(len(item.tokens) + max(map(len, item.choices)) for item in items)
    if longest > subject.model.cfg.n_ctx:
        raise TaskError(f"the model reads {subject.model.cfg.n_ctx} tokens at most, and a prompt takes {longest}")
    return items


def _measure(subject: Subject, options: Options, cells: Cells, *, name: str) -> Outcome:
    try:
        items = draw_items(subject, options, TASKS[name])
    except TaskError as refusal:
        return Outcome(measurements=[], about={"refused": str(refusal)})
    whole = score_choices(subject.model, items, seed=options.seed)
    result = RankedRemoval(whole=whole, steps=(), seed=options.seed)
    if whole.informative:
        counts = choose_counts(subject.model.cfg.n_layers * subject.model.cfg.n_heads)
        heads = restore_scores(subject.provenance, cells["heads/repeated"]).top("induction", counts[-1])
        result = remove_ranked_heads(
            subject.model,
            items,
            heads,
            counts=counts,
            n_draws=N_DRAWS,
            n_shares=N_SHARES,
            whole=whole,
            seed=options.seed,
        )
    arrays, about = pack_removal(result)
    first = asdict(items[0])
    example = {part: first[part] for part in ("text", "choice_texts", "answer")}
    rows = list(_rows(result, TASKS[name].title, hash_items(items)))
    return Outcome(measurements=rows, arrays=arrays, about={**about, "refused": None, "example": example})


def _rows(result: RankedRemoval, task: str, data_sha256: str) -> Iterator[Measurement]:
    whole = result.whole
    row = partial(Measurement, analysis="rules", task=task, seed=result.seed, data_sha256=data_sha256)
    n = len(whole.answers)
    note = None if whole.informative else "not above chance: uninformative"
    for by, metric in METRICS.items():
        value, low, high = whole.accuracy(by)
        yield row(metric=metric, value=value, low=low, high=high, n=n, note=note)
    yield row(metric=METRICS["per_token"], value=whole.chance, control="chance", note="exact: one choice in so many")
    for step in result.steps:
        yield from _step_rows(step, row, n)


def _step_rows(step: RemovalStep, row: "partial[Measurement]", n: int) -> Iterator[Measurement]:
    note = "; ".join(step.notes) or None
    removed = f"{step.n_heads} head{'s' if step.n_heads > 1 else ''} removed"
    for by, metric in METRICS.items():
        for control, estimate in ((None, step.accuracy), (RANDOM_HEADS, step.control_accuracy)):
            value, low, high = estimate(by)
            yield row(metric=f"{metric}, {removed}", value=value, low=low, high=high, n=n, control=control, note=note)
    value, low, high = step.lost_beyond_control()
    beyond = f"accuracy lost beyond {RANDOM_HEADS}, {removed}"
    yield row(metric=beyond, value=value, low=low, high=high, n=n, note=note)
    yield row(metric=f"p-value, {beyond}", value=step.p_value(), n=step.n_draws, note="n counts draws")
    for draw, lost in enumerate(step.control_losses()):
        heads = " ".join(f"{layer}.{head}" for layer, head in step.control_heads[draw])
        yield row(metric=f"accuracy lost, one draw, {removed}", value=float(lost), n=step.control_items.shape[1],
                  control=RANDOM_HEADS, note=f"draw {draw}: {heads}")  # fmt: skip


def _refuse(subject: Subject) -> str | None:
    cfg = subject.model.cfg
    if cfg.n_layers * cfg.n_heads < 2:
        return "the model has one head, which leaves none to compare with"
    refusals = []
    for variant in TASKS.values():
        try:
            draw_items(subject, Options(quick=True, bos="none"), variant)
        except TaskError as refusal:
            refusals.append(str(refusal))
    return refusals[0] if len(refusals) == len(TASKS) else None


RULES = Analysis(
    name="rules",
    question=QUESTION,
    parts=tuple(Part(name=name, measure=partial(_measure, name=name)) for name in TASKS),
    write_section=write_section,
    needs=("heads",),
    applies=_refuse,
)
