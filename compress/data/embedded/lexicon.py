"""The words of the embedded grammar: what is judged, how it is judged, and who judges.

Every list is written `words used everywhere | words kept out of every train split`. The words behind the bar turn up
in validation, test, the unlabelled pool and the corpus only, so that a model must have learned them without labels.
The lists are short on purpose: the difficulty is to lie in how meaning is composed, not in how many words there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """One list of expressions (each a tuple of words): the common ones first, then the held-out ones."""

    entries: tuple[tuple[str, ...], ...]
    common: int

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return iter(self.entries)


@dataclass(frozen=True, slots=True)
class Kind:
    """One class of things that people judge, with the adjectives that fit it."""

    name: str
    nouns: Words
    positive: Words
    negative: Words

    def adjectives(self, sign: int) -> Words:
        return self.positive if sign > 0 else self.negative


def words(text: str) -> Words:
    """`a, b c, d | e` as expressions."""
    common, _, rare = text.partition("|")
    split = [[tuple(entry.split()) for entry in part.split(",") if entry.strip()] for part in (common, rare)]
    return Words(tuple(split[0] + split[1]), len(split[0]))


ANY_POSITIVE = words(
    "good, great, excellent, wonderful, superb, fantastic, lovely, impressive, pleasant, brilliant, perfect, "
    "delightful, first rate, worth every penny | marvelous, top notch"
)
ANY_NEGATIVE = words(
    "bad, terrible, awful, poor, horrible, disappointing, mediocre, dreadful, unpleasant, lousy, annoying, miserable, "
    "second rate, a waste of money | atrocious, abysmal"
)

FOOD = Kind(
    "food",
    words(
        "soup, pasta, bread, salad, curry, steak, dessert, coffee, breakfast, house wine, rice, cheese plate, ice "
        "cream, stew | omelette, lamb, onion tart"
    ),
    words("tasty, delicious, fresh, crisp, juicy, fragrant, creamy | succulent, zesty"),
    words("bland, stale, soggy, greasy, burnt, watery, salty | rancid, inedible"),
)
PEOPLE = Kind(
    "people",
    words(
        "waiter, manager, receptionist, chef, guide, driver, host, cleaning staff, front desk, bartender, cashier, "
        "support team, owner, porter | butler, trainer, night guard"
    ),
    words("friendly, polite, attentive, helpful, patient, welcoming, professional | considerate, affable"),
    words("rude, careless, impatient, arrogant, sloppy, hostile, incompetent | surly, condescending"),
)
PLACE = Kind(
    "place",
    words(
        "room, lobby, garden, bathroom, terrace, pool, kitchen, hallway, balcony, dining room, parking lot, "
        "elevator, bar, courtyard | veranda, attic, reading room"
    ),
    words("clean, cozy, spacious, bright, quiet, elegant, comfortable | airy, serene"),
    words("dirty, cramped, noisy, gloomy, shabby, damp, smelly | musty, dingy"),
)
DEVICE = Kind(
    "device",
    words(
        "phone, screen, battery, keyboard, camera, charger, speaker, laptop, printer, router, touch screen, battery "
        "life, remote control, tablet | drone, webcam, hard drive"
    ),
    words("reliable, fast, sturdy, responsive, durable, accurate, powerful | robust, nimble"),
    words("slow, flimsy, buggy, fragile, unreliable, clunky, defective | laggy, rickety"),
)
STORY = Kind(
    "story",
    words(
        "plot, ending, dialogue, novel, script, acting, soundtrack, final chapter, opening scene, film, cast, "
        "concert, lecture, short story | sequel, prologue, stage set"
    ),
    words("gripping, moving, witty, funny, original, memorable, convincing | riveting, poignant"),
    words("dull, predictable, boring, shallow, confusing, clumsy, forgettable | contrived, trite"),
)
DEAL = Kind(
    "deal",
    words(
        "price, delivery, booking, refund, service, warranty, schedule, discount, shuttle bus, return policy, ticket, "
        "repair, tour, room service | surcharge, voucher, gift card"
    ),
    words("fair, prompt, affordable, convenient, generous, punctual, smooth | seamless, equitable"),
    words("late, misleading, inconvenient, chaotic, stingy, delayed, unfair | exorbitant, haphazard"),
)

# A setting and the kinds of things one meets there; documents and sentence pairs keep to one setting.
SETTINGS: tuple[tuple[str, tuple[Kind, ...]], ...] = (
    ("restaurant", (FOOD, FOOD, PEOPLE, PLACE, DEAL)),
    ("hotel", (PLACE, PLACE, PEOPLE, FOOD, DEAL)),
    ("shop", (DEVICE, DEVICE, PEOPLE, DEAL)),
    ("festival", (STORY, STORY, PLACE, PEOPLE, DEAL)),
)

NAMES = words(
    "Anna, Tom, Maria, Peter, Laura, David, Nina, Oscar, Julia, Martin, Clara, Simon, Emma, Victor, Sara, Daniel "
    "| Ingrid, Stefan, Beatrice, Leon"
)
CRITICS = words(
    "my sister, my brother, my boss, the critic, our neighbor, the blogger, the inspector, my uncle "
    "| the columnist, my grandfather"
)

# (past, base) of verbs: the thing does it to somebody, or somebody does it to the thing.
PLEASED = (("delighted", "delight"), ("impressed", "impress"), ("pleased", "please"), ("charmed", "charm"))
ANNOYED = (("disappointed", "disappoint"), ("annoyed", "annoy"), ("bored", "bore"), ("irritated", "irritate"))
LIKED = (("loved", "love"), ("enjoyed", "enjoy"), ("liked", "like"), ("praised", "praise"))
HATED = (("hated", "hate"), ("disliked", "dislike"), ("regretted", "regret"), ("condemned", "condemn"))

BOOSTS = words("very, really, extremely, incredibly, absolutely, truly | utterly, terribly")
DAMPERS = words("fairly, rather, somewhat, quite | moderately")
SOFTENERS = words("exactly, really, at all, in any way, particularly, all that | remotely")

SAID = words("said, claimed, insisted, thought, wrote, believed | maintained, argued")
AGREED = words("agreed, felt the same, thought so too | concurred")
DISAGREED = words("disagreed, felt otherwise, thought the opposite | begged to differ")
DISAGREE = words("disagree, see it differently, think the opposite | beg to differ")
DENIED = words("denied, doubted, disputed | contested")

OPENERS = words(
    "on Tuesday, last weekend, honestly, to be fair, in my experience, after two hours, in the end, during our stay, "
    "this time, for the record, on our first visit, once again | come to think of it"
)
CLOSERS = words(
    "on Friday night, during the holidays, after the long drive, that evening, as usual, before we left, at the time, "
    "on the second day, for most of the week, in the afternoon | at dusk"
)
ASIDES = words("which everyone talks about, which was new to us, which we had heard of | which the mayor recommended")
# Things mentioned in passing, without any judgement.
PASSING = words("after we saw, without a word about, before we got to, aside from, with no mention of | apart from")
