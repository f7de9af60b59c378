"""Rule tasks: what is drawn, cut by tokens, under tokenizers that write words, bytes and pieces."""

from collections import Counter

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from tasks.prompts import IOI, FuzzyCopying, ICLClassification, IOIChoices
from tasks.prompts.fuzzy_copying import WORDS
from tasks.prompts.icl_classification import CLASSES
from tasks.prompts.names import NAMES
from tasks.prompts.rules import SYMBOLS, ChoiceItem, find_words, hash_items, write_item
from tasks.prompts.templates import OBJECTS, PLACES, TEMPLATES
from tasks.task import TaskError
from tests.conftest import make_tokenizer
from tests.untyped import as_without_type_checks

CORPUS = [
    *TEMPLATES * 20,
    *(f"Today {name} and {name} went to the {place}" for name in NAMES for place in PLACES[:5]),
    *(f"in the {place} the {thing}" for place in PLACES for thing in OBJECTS),
    *[f"list: {word} and {word}: {label} ;" for label, words in CLASSES.items() for word in words.split()] * 5,
    *(f"list: {word} {word} {word}" for word in WORDS * 5),
    *(f"list: {symbol} and {symbol} ;" for symbol in SYMBOLS * 5),
]


def make_words(*, symbols=SYMBOLS):
    """Whole words and marks, also in capitals; a symbol that isn't among them is unknown."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    pieces = r"[a-zA-Z]+|[:;,.]|[^\sa-zA-Z:;,.]+"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pieces), "removed", invert=True)
    texts = [*CORPUS[: -len(SYMBOLS) * 5], "LIST: " + " ".join(WORDS).upper(), " ".join(symbols)]
    tokenizer.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<unk>", "<pad>"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")


def make_gpt2_like():
    """Bytes, with the space in front of a word as part of its token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")


def make_llama_like():
    """Pieces that begin with a lower bar, also at the start of the text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="<s>")


@pytest.fixture(scope="module", params=[make_words, make_gpt2_like, make_llama_like], ids=["words", "gpt2", "llama"])
def tokenizer(request):
    return request.param()


def make_all(tokenizer):
    return [
        FuzzyCopying(tokenizer),
        IOIChoices(tokenizer),
        IOIChoices(tokenizer, "symbols"),
        *(ICLClassification(tokenizer, labels) for labels in ("original", "permuted", "symbols")),
    ]


def test_every_item_is_its_text_in_the_tokenizers_own_tokens(tokenizer):
    for task in make_all(tokenizer):
        items = task.sample(30, seed=0)
        assert len(items) == 30
        for item in items:
            assert len(item.choices) == round(1 / task.chance)
            for choice, text in zip(item.choices, item.choice_texts, strict=True):
                whole = tokenizer(item.text + text, add_special_tokens=False)["input_ids"]
                assert whole == [*item.tokens, *choice], task.name


def test_the_seed_decides_and_a_first_token_stands_in_front(tokenizer):
    for task in make_all(tokenizer):
        one, again, other = (task.sample(12, seed=seed) for seed in (0, 0, 1))
        assert one == again
        assert hash_items(one) == hash_items(again) != hash_items(other)
        behind = task.sample(12, seed=0, bos=2)
        assert [item.tokens for item in behind] == [(2, *item.tokens) for item in one]
        assert [item.choices for item in behind] == [item.choices for item in one]


def test_the_answer_of_fuzzy_copying_is_the_next_word_of_the_list(tokenizer):
    task = FuzzyCopying(tokenizer)
    n = 2 * len(task.words)
    items = task.sample(n, seed=0)
    for item in items:
        small, capitals = (line.split()[1:] for line in item.text.split("\n"))
        assert len(set(small)) == task.n_words == 6
        assert [word.upper() for word in small[: len(capitals)]] == capitals
        assert item.choice_texts == tuple(f" {word.upper()}" for word in small)
        assert item.answer == len(capitals)
        assert len({len(choice) for choice in item.choices}) == 1  # length favours none
    answers = Counter(item.choice_texts[item.answer] for item in items)
    places = Counter(item.answer for item in items)
    assert set(answers.values()) == {2}
    assert set(places) == {2, 3, 4}
    assert max(places.values()) - min(places.values()) <= 1


def read_examples(item):
    """(word, label) of each example, and the word that is asked."""
    *examples, query = item.text.removeprefix("list: ").split(" ; ")
    return [tuple(example.split(": ")) for example in examples], query.removesuffix(":")


def test_labels_are_those_of_the_classes_and_the_word_asked_is_new(tokenizer):
    class_of = {word: label for label, words in CLASSES.items() for word in words.split()}
    names = list(CLASSES)
    for labels in ("original", "permuted", "symbols"):
        task = ICLClassification(tokenizer, labels, n_examples=9)
        items = task.sample(31, seed=0)
        asked = Counter()
        for item in items:
            examples, query = read_examples(item)
            assert query not in {word for word, _ in examples}
            assert Counter(class_of[word] for word, _ in examples) == dict.fromkeys(names, 3)
            assert {class_of[word] for word, _ in examples[:3]} == set(names)
            stands_for = {class_of[word]: label for word, label in examples}
            assert all(label == stands_for[class_of[word]] for word, label in examples)
            assert item.choice_texts == tuple(f" {stands_for[name]}" for name in names)
            assert item.choice_texts[item.answer] == f" {stands_for[class_of[query]]}"
            asked[class_of[query]] += 1
            if labels == "original":
                assert stands_for == {name: name for name in names}
            if labels == "permuted":
                assert stands_for == dict(zip(names, [*names[1:], names[0]], strict=True))
            if labels == "symbols":
                assert set(stands_for.values()) <= set(SYMBOLS)
        assert max(asked.values()) - min(asked.values()) <= 1


def test_one_seed_asks_the_same_words_under_every_labeling(tokenizer):
    def words(labels):
        items = ICLClassification(tokenizer, labels).sample(10, seed=4)
        return [([word for word, _ in examples], query) for examples, query in map(read_examples, items)]

    assert words("original") == words("permuted") == words("symbols")
    symbols = [item.choice_texts for item in ICLClassification(tokenizer, "symbols").sample(10, seed=4)]
    assert len(set(symbols)) == 10


def test_the_receiver_is_the_one_who_is_named_once(tokenizer):
    for people, known in (("names", NAMES), ("symbols", SYMBOLS)):
        for item in IOIChoices(tokenizer, people).sample(40, seed=0):
            words = item.text.replace(",", "").split()
            receiver, giver = (choice.strip() for choice in item.choice_texts)
            assert {receiver, giver} <= set(known)
            assert (words.count(receiver), words.count(giver)) == (1, 2)
            assert item.answer == 0


def test_symbols_stand_for_names_in_the_counterparts_too(tokenizer):
    prompts = IOI(tokenizer, "symbols").sample(20, seed=0)
    assert len(set(prompts.templates.tolist())) > 5
    assert all(", {subject}" in TEMPLATES[t] or " {second} " in TEMPLATES[t] for t in prompts.templates.tolist())
    assert prompts.orders.count("ABBA") == 10
    swapped = prompts.corrupted["swap"].gather(1, prompts.roles["S2"])[:, 0]
    assert swapped.tolist() == prompts.io.tolist()


def test_a_tokenizer_that_joins_the_choice_with_the_prompt_is_refused():
    class Joins:
        def encode(self, text, add_special_tokens):
            return [1] if text.endswith("ab") else [ord(letter) for letter in text]

    with pytest.raises(TaskError, match=r"doesn't keep 'b' apart from the end of the prompt 'a'"):
        write_item(Joins(), "a", ("c", "b"), answer=0)
    cut = write_item(Joins(), "a", ("c", "dd"), answer=1, bos=9)
    assert (cut.tokens, cut.choices) == ((9, 97), ((99,), (100, 100)))


def test_choices_that_cannot_be_told_apart_are_refused():
    def make(choices, answer=0, tokens=(1,)):
        return ChoiceItem(tokens=tokens, choices=choices, answer=answer, text="", choice_texts=("",) * len(choices))

    assert make(((1, 2), (1, 3))).answer == 0
    for choices in (((1, 2), (1, 2, 3)), ((1,), (1,)), ((1, 2), ())):
        with pytest.raises(TaskError, match="begins or equals another one"):
            make(choices)
    for wrong in (
        {"choices": ((1,),)},
        {"choices": ((1,), (2,)), "answer": 2},
        {"choices": ((1,), (2,)), "tokens": ()},
    ):
        with pytest.raises(TaskError, match="give at least one token, two choices, and the number of one of them"):
            make(**wrong)


def test_what_cannot_be_asked_is_refused():
    for task in (FuzzyCopying, IOIChoices, ICLClassification):
        with as_without_type_checks(), pytest.raises(TaskError, match="the model has no tokenizer, so no sentence"):
            task(None)
    letters, words = make_tokenizer(), make_words()
    with pytest.raises(
        TaskError, match=rf"writes 0 of {len(WORDS)} words as one token each, but lists of 6 words need 12"
    ):
        FuzzyCopying(letters)
    with pytest.raises(
        TaskError, match="writes 0 words of a class as one token each, but 18 examples and a new word need 7"
    ):
        ICLClassification(letters)
    with pytest.raises(
        TaskError, match=rf"writes 9 of {len(SYMBOLS)} symbols as one token, but these sentences need 10"
    ):
        IOIChoices(make_words(symbols=SYMBOLS[:9]), "symbols")
    with pytest.raises(TaskError, match=rf"writes 5 of {len(SYMBOLS)} symbols as one token, but labels are drawn from"):
        ICLClassification(make_words(symbols=SYMBOLS[:5]), "symbols")
    with pytest.raises(TaskError, match="10 examples can't be shared out evenly: give a multiple of 3"):
        ICLClassification(words, n_examples=10)
    with pytest.raises(TaskError, match="a list of 3 words leaves too little"):
        FuzzyCopying(words, n_words=3)
    with as_without_type_checks():
        with pytest.raises(TaskError, match="labels='true' isn't known; use one of original, permuted, symbols"):
            ICLClassification(words, "true")
        with pytest.raises(TaskError, match="people='cats' isn't known; use one of names, symbols"):
            IOIChoices(words, "cats")
    for task in make_all(words):
        with pytest.raises(TaskError, match="a batch of 0 prompts cannot be drawn: give at least 1"):
            task.sample(0, seed=0)


def test_words_and_symbols_are_found_as_the_tokenizer_writes_them():
    words = make_words(symbols=SYMBOLS[:12])
    assert tuple(find_words(words, SYMBOLS)) == SYMBOLS[:12]
    assert len(set(SYMBOLS)) == len(SYMBOLS)
    assert len(set(WORDS)) == len(WORDS)
    everything = [word for known in CLASSES.values() for word in known.split()]
    assert len(set(everything)) == len(everything)
