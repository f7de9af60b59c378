"""The wording of the indirect-object sentences: where, what, and who gives it.

Both names stand in the middle of the sentence, since a tokenizer writes the first word of a text in another way. Every
sentence ends before the receiver's name.
"""

TEMPLATES = (
    "Early in the morning {first} and {second} walked to the {place} together, and {subject} handed the {object} to",
    "Yesterday {first} and {second} met alone near the {place}, and {subject} passed the {object} to",
    "On the way to the {place}, {first} and {second} stopped to rest together, and {subject} handed the {object} to",
    "Last week {first} and {second} spent a day together at the {place}, and {subject} handed the {object} to",
    "After dinner {first} and {second} sat down together near the {place}, and {subject} handed the {object} to",
    "At the {place}, {first} and {second} sat down next to each other, and {subject} gave the {object} to",
    "My neighbours {first} and {second} went to the {place} together, and {subject} gave the {object} to",
    "Just before sunset {first} and {second} met near the {place}, and {subject} handed the {object} to",
    "Once {first} and {second} had arrived at the {place}, {subject} handed the {object} to",
    "There was nobody at the {place} but {first} and {second}, and {subject} handed the {object} to",
    "In the afternoon {first} and {second} took the bus to the {place} together, and {subject} gave the {object} to",
    "While {first} and {second} were sitting alone near the {place}, {subject} handed the {object} to",
    "For the first time {first} and {second} visited the {place} together. Before lunch {subject} gave the {object} to",
    "As soon as {first} and {second} were alone at the {place}, {subject} handed the {object} to",
    "Two friends, {first} and {second}, cleaned the {place} all day. At the end {subject} gave the {object} to",
    "Every week {first} and {second} met at the {place}, and {subject} handed the {object} to",
    "During the break {first} and {second} stood side by side near the {place}, and {subject} handed the {object} to",
    "At noon {first} and {second} met at the {place}, and {subject} handed the {object} to",
)

PLACES = (
    "park", "beach", "river", "lake", "garden", "farm", "castle", "bridge", "playground", "museum", "library", "harbour",
)  # fmt: skip
"""Without a third person in sight, who might be the one to receive."""

OBJECTS = (
    "book", "ring", "map", "key", "ball", "camera", "picture", "watch", "basket", "lamp", "guitar", "box", "apple", "flower",
    "cup", "hat",
)  # fmt: skip
