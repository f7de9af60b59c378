"""The words of McCoy, Frank & Linzen (arXiv 2001.03632), which Murty et al. (arXiv 2305.18741) train on."""

DETERMINERS = ("the", "some", "my", "your", "our", "her")
PREPOSITIONS = ("around", "near", "with", "upon", "by", "behind", "above", "below")
RELATIVISERS = ("who", "that")
NOUNS = {
    "sg": (
        *("newt", "orangutan", "peacock", "quail", "raven", "salamander", "tyrannosaurus"),
        *("unicorn", "vulture", "walrus", "xylophone", "yak", "zebra"),
    ),
    "pl": (
        *("newts", "orangutans", "peacocks", "quails", "ravens", "salamanders", "tyrannosauruses"),
        *("unicorns", "vultures", "walruses", "xylophones", "yaks", "zebras"),
    ),
}
INTRANSITIVE = {
    "pl": ("giggle", "smile", "sleep", "swim", "wait", "move", "change", "read", "eat"),
    "sg": ("giggles", "smiles", "sleeps", "swims", "waits", "moves", "changes", "reads", "eats"),
    "past": ("giggled", "smiled", "slept", "swam", "waited", "moved", "changed", "read", "ate"),
}
TRANSITIVE = {
    "pl": (*("entertain", "amuse", "high_five", "applaud", "confuse", "admire", "accept", "remember", "comfort"),),
    "sg": (
        *("entertains", "amuses", "high_fives", "applauds", "confuses", "admires", "accepts", "remembers", "comforts"),
    ),
    "past": (
        *("entertained", "amused", "high_fived", "applauded", "confused", "admired", "accepted"),
        *("remembered", "comforted"),
    ),
}
AUXILIARIES = {"sg": ("does", "doesn't"), "pl": ("do", "don't")}
