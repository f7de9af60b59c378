"""Ordinary English, written for this purpose so that no model has it by heart: what an edit costs apart from copying.

Each passage is cut to one number of the model's own tokens, and the loss is the mean over all tokens but the first.

>>> len(PASSAGES), min(len(passage.split()) for passage in PASSAGES) >= 55
(16, True)
"""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from interp.errors import InputError
from interp.models.check import require_tokenizer

PASSAGES: tuple[str, ...] = (
    "The ferry was late again, so the few people on the pier had time to look at the water. A boy counted the gulls "
    "on the roof of the ticket office. His aunt had bought two buns for the journey, and both were gone before the "
    "first bell rang. When the boat came round the headland at last, nobody cheered, but everyone stood up and "
    "reached for a bag.",
    "Bread needs little more than flour, water, salt and time. Most of the work is waiting. In a warm kitchen the "
    "dough will rise in two hours, in a cold one it may take all night, and the slower loaf usually tastes better. "
    "Bakers judge it by touch rather than by the clock. A finger pressed into the surface should leave a mark that "
    "fills slowly.",
    "When the council put a weather station on the roof of the school, the older pupils were asked to read it every "
    "morning. At first they wrote the figures on a sheet of paper by the door. After a month somebody drew a curve, "
    "and after a year the curve had become the most visited picture in the building. Even the cook came to see how "
    "much rain had fallen.",
    "My grandmother repaired clocks in a room no wider than a corridor. She worked with the window open, in winter "
    "too, because she said that a clock should be set in the air it would live in. Customers learned to keep their "
    "coats on. Nobody ever complained about the price, although some brought their own cushions and a flask of tea "
    "for the wait.",
    "Rivers carry more than water. Every flood brings down sand, gravel and broken branches, and leaves them wherever "
    "the current slackens. Over many years a bank grows on the inside of each bend while the outside is worn away, so "
    "the whole course moves sideways across the valley. Old maps of such places are often wrong, not because the "
    "surveyors were careless, but because the land did not wait.",
    "The committee agreed on the colour of the new doors after three meetings. Green was thought too close to the "
    "hospital, and red reminded the treasurer of a shop that owed her money. In the end they chose a dark blue that "
    "looked black in the evening. The painter, who had been told about every stage of the debate, had ordered the "
    "tins a week before the first vote.",
    "Anyone who has moved house knows that books are the heaviest thing a person can own. They look harmless on a "
    "shelf, but a box of them will bend a trolley and silence a strong man on the stairs. The sensible advice is to "
    "pack them in small boxes. The usual practice is to fill the largest box first and discover the mistake when it "
    "has to be lifted.",
    "On the last day of the expedition the wind dropped, and for the first time they could hear the ice. It made a "
    "sound like a chair being moved in another room. Two of the party sat outside the tent and tried to guess where "
    "the next noise would come from. They were wrong each time. The doctor wrote in her notebook that silence had "
    "turned out to be full of furniture.",
    "Bees find their way home by the sun, and on cloudy days by the pattern of light that the clouds let through. A "
    "scout that has discovered a good field returns and dances on the comb. The angle of the dance gives the "
    "direction, its length gives the distance. Others follow her closely in the dark, touching her with their "
    "antennae, and then leave the hive and fly straight to the place.",
    "It took the village eleven years to pay for the bridge. There were concerts, raffles and a sponsored walk that "
    "ended in a thunderstorm. The engineer reduced her fee twice and finally forgot to send the bill. When it was "
    "opened, the mayor cut the ribbon with garden shears because the good scissors had been left on the other side, "
    "where most of the guests were standing as well.",
    "A good question is often shorter than its answer, but it takes longer to find. The teacher let us sit with the "
    "problem for the whole lesson and wrote nothing on the board. Some of us were angry. Near the end a quiet girl "
    "asked whether the two lengths had to be measured in the same direction, and it was as if somebody had opened a "
    "window in the room.",
    "The market begins before dawn, when the farmers arrive with lamps on their carts. By seven the best fruit is "
    "gone. Those who come later must bargain, and they enjoy it, since nothing they say is quite true and nobody "
    "expects it to be. An old man sells string by the arm's length. He has short arms, and his customers have known "
    "it for thirty years.",
    "Steel railways expand in the heat, so the early builders left small gaps between the rails. Passengers heard "
    "them as a steady clicking, and children used the rhythm to estimate the speed of the train. Modern tracks are "
    "welded into one piece and held so firmly that they cannot lengthen. The clicking has disappeared, and with it a "
    "simple lesson in arithmetic that cost nobody any effort.",
    "She had promised to water the plants while they were away, and she did, but she also talked to them and moved "
    "the large fern to the window. When the family came back in August, the fern had doubled in size and the cat "
    "would not leave its shade. They thanked her and moved the pot to its former place. Within a week both the plant "
    "and the animal looked offended.",
    "A map of the underground does not show where the stations are. It shows the order in which they come and where "
    "one line crosses another, and it leaves out almost everything else. Visitors sometimes change trains twice to "
    "reach a street they could have seen from where they stood. Those who live in the city carry both maps in their "
    "heads and seldom notice that the two disagree.",
    "The lighthouse has been empty since the lamp was automated, but the keeper's garden still flowers. Someone must "
    "be weeding it. The fishermen say that it is not one of them, and the coastguard has no money for roses. Every "
    "spring a few more beds are dug along the southern wall, out of the wind, and a new label appears in the same "
    "careful handwriting as the year before.",
)


def tokenize_passages(model: Any, *, n_positions: int, bos: int | None) -> Int[Tensor, "passage pos"]:
    """The passages in the model's tokens, behind `bos` where given, each cut to `n_positions`.

    Raises `InputError` for a model without a tokenizer.
    """
    tokenizer = require_tokenizer(model)
    front = [] if bos is None else [bos]
    rows = [front + list(tokenizer.encode(passage, add_special_tokens=False)) for passage in PASSAGES]
    length = min(n_positions, *(len(row) for row in rows))
    if length < 2:
        raise InputError(f"A loss on text needs at least 2 positions, but n_positions={n_positions} was given.")
    return torch.tensor([row[:length] for row in rows])
