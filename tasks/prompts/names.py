"""Common first names: a tokenizer keeps some of them whole, and only those can be told apart by one token."""

_WRITTEN_OUT = """
Aaron Adam Alan Albert Alex Alice Amanda Amy Andrea Andrew Angela Anna Anne Anthony Arthur Ashley Barbara Ben
Benjamin Betty Bill Bob Brandon Brian Bruce Carl Carol Caroline Charles Charlie Chris Christine Christopher
Claire Clara Daniel David Deborah Dennis Diana Donald Donna Dorothy Douglas Edward Elizabeth Ellen Emily Emma
Eric Eva Evelyn Frances Frank Fred Gary George Gerald Grace Greg Hannah Harry Helen Henry Howard Ian Isaac
Jack Jacob James Jane Janet Jason Jean Jeff Jennifer Jerry Jessica Jim Joan Joe John Jonathan Joseph Josh
Judith Judy Julia Julie Justin Karen Kate Katherine Keith Kelly Ken Kenneth Kevin Kim Larry Laura Lawrence
Leo Leonard Linda Lisa Louis Lucy Luke Margaret Maria Marie Mark Martha Martin Mary Matt Matthew Max Megan
Melissa Michael Michelle Mike Nancy Nathan Nicholas Nick Nicole Nina Nora Oliver Oscar Pamela Patricia Patrick
Paul Peter Philip Rachel Ralph Rebecca Richard Robert Roger Ronald Rose Roy Russell Ruth Ryan Sam Samuel
Sandra Sarah Scott Sean Sharon Simon Sophie Stephen Steve Steven Susan Teresa Thomas Tim Timothy Tom Tony
Victor Victoria Virginia Walter Wayne William
"""

NAMES = tuple(_WRITTEN_OUT.split())
"""Their order means nothing."""
