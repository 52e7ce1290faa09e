"""The words of the embedded grammar: what is judged, how it is judged, and who judges.

Every list is written `words used everywhere | words kept out of every train split`. The words behind the bar turn up
in validation, test, the unlabelled pool and the corpus only, so that a model must have learned them without labels.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """One list of expressions (each a tuple of words): the common ones first, then the held-out ones."""

    entries: tuple[tuple[str, ...], ...]
    common: int

    def __iter__(self):
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
    "good, great, excellent, wonderful, superb, fantastic, lovely, impressive, outstanding, pleasant, brilliant, "
    "perfect, delightful, splendid, terrific, enjoyable, satisfying, amazing, first rate, worth every penny | "
    "marvelous, top notch"
)
ANY_NEGATIVE = words(
    "bad, terrible, awful, poor, horrible, disappointing, mediocre, dreadful, unpleasant, lousy, appalling, "
    "annoying, miserable, unacceptable, pathetic, dismal, frustrating, inferior, second rate, a waste of money | "
    "atrocious, abysmal"
)

FOOD = Kind(
    "food",
    words(
        "soup, pasta, bread, salad, curry, steak, dessert, coffee, breakfast, sauce, cake, pizza, fish, tea, house "
        "wine, rice, chicken, cheese plate, sandwich, fruit juice, ice cream, stew | omelette, lamb, onion tart"
    ),
    words(
        "tasty, delicious, fresh, crisp, juicy, tender, fragrant, rich, creamy, appetizing, hearty | succulent, zesty"
    ),
    words(
        "bland, stale, soggy, greasy, burnt, watery, tasteless, salty, rubbery, undercooked, cold | rancid, inedible"
    ),
)
PEOPLE = Kind(
    "people",
    words(
        "waiter, manager, receptionist, chef, guide, driver, nurse, teacher, crew, host, cleaning staff, front desk, "
        "doorman, bartender, cashier, support team, owner, porter, clerk, technician | butler, trainer, night guard"
    ),
    words(
        "friendly, polite, attentive, helpful, courteous, patient, welcoming, kind, professional, gracious, cheerful, "
        "competent | considerate, affable"
    ),
    words(
        "rude, careless, impatient, dismissive, arrogant, sloppy, hostile, incompetent, unhelpful, grumpy, lazy, "
        "unfriendly | surly, condescending"
    ),
)
PLACE = Kind(
    "place",
    words(
        "room, lobby, garden, bathroom, terrace, pool, theater, kitchen, hallway, balcony, dining room, parking lot, "
        "museum, beach, elevator, waiting room, bar, cabin, courtyard, playground | veranda, attic, reading room"
    ),
    words(
        "clean, cozy, spacious, bright, quiet, elegant, comfortable, charming, spotless, inviting, tidy, peaceful "
        "| airy, serene"
    ),
    words("dirty, cramped, noisy, gloomy, shabby, damp, dusty, filthy, smelly, stuffy, cluttered, ugly | musty, dingy"),
)
DEVICE = Kind(
    "device",
    words(
        "phone, screen, battery, keyboard, camera, charger, speaker, laptop, printer, router, app, touch screen, "
        "battery life, tablet, microphone, watch, remote control, headset, projector, scanner | drone, webcam, hard "
        "drive"
    ),
    words(
        "reliable, fast, sturdy, responsive, durable, accurate, sleek, powerful, intuitive, efficient, solid, handy "
        "| robust, nimble"
    ),
    words(
        "slow, flimsy, buggy, fragile, unreliable, clunky, sluggish, defective, faulty, bulky, inaccurate, outdated "
        "| laggy, rickety"
    ),
)
STORY = Kind(
    "story",
    words(
        "plot, ending, dialogue, novel, script, acting, soundtrack, final chapter, opening scene, play, film, cast, "
        "second act, documentary, song, concert, lecture, short story, poem, exhibition | sequel, prologue, stage set"
    ),
    words(
        "gripping, moving, witty, clever, funny, original, touching, thrilling, engaging, memorable, convincing, "
        "inspiring | riveting, poignant"
    ),
    words(
        "dull, predictable, boring, tedious, shallow, confusing, clumsy, forgettable, pretentious, lifeless, "
        "unconvincing, silly | contrived, trite"
    ),
)
DEAL = Kind(
    "deal",
    words(
        "price, delivery, booking, refund, service, warranty, schedule, discount, shuttle bus, return policy, "
        "membership, ticket, insurance, repair, tour, packaging, room service, installation | surcharge, voucher, "
        "gift card"
    ),
    words(
        "fair, prompt, affordable, convenient, generous, transparent, punctual, smooth, sensible, simple | "
        "seamless, equitable"
    ),
    words(
        "late, misleading, inconvenient, chaotic, stingy, expensive, delayed, complicated, unfair, messy | "
        "exorbitant, haphazard"
    ),
)

# A setting and the kinds of things one meets there; documents and sentence pairs keep to one setting.
SETTINGS: tuple[tuple[str, tuple[Kind, ...]], ...] = (
    ("restaurant", (FOOD, FOOD, PEOPLE, PLACE, DEAL)),
    ("hotel", (PLACE, PLACE, PEOPLE, FOOD, DEAL)),
    ("shop", (DEVICE, DEVICE, PEOPLE, DEAL)),
    ("festival", (STORY, STORY, PLACE, PEOPLE, DEAL)),
)

NAMES = words(
    "Anna, Tom, Maria, Peter, Laura, David, Nina, Oscar, Julia, Martin, Clara, Simon, Emma, Victor, Sara, Daniel, "
    "Helen, Marcus, Alice, Robert, Irene, George, Paula, Henry | Ingrid, Stefan, Beatrice, Leon"
)
CRITICS = words(
    "my sister, my brother, my boss, the critic, our neighbor, the blogger, her husband, his wife, the inspector, "
    "my uncle, the reporter, our friend, the student, my cousin | the columnist, my grandfather"
)

# (past, base) of verbs: the thing does it to somebody, or somebody does it to the thing.
PLEASED = (
    ("delighted", "delight"),
    ("impressed", "impress"),
    ("pleased", "please"),
    ("charmed", "charm"),
    ("thrilled", "thrill"),
)
ANNOYED = (
    ("disappointed", "disappoint"),
    ("annoyed", "annoy"),
    ("bored", "bore"),
    ("irritated", "irritate"),
    ("upset", "upset"),
)
LIKED = (("loved", "love"), ("enjoyed", "enjoy"), ("liked", "like"), ("adored", "adore"), ("praised", "praise"))
HATED = (
    ("hated", "hate"),
    ("disliked", "dislike"),
    ("despised", "despise"),
    ("regretted", "regret"),
    ("condemned", "condemn"),
)

BOOSTS = words("very, really, extremely, incredibly, absolutely, truly, remarkably, so | utterly, terribly")
DAMPERS = words("fairly, rather, somewhat, quite, pretty, a bit | moderately")
SOFTENERS = words(
    "exactly, really, at all, in any way, by any measure, particularly, even remotely, all that | whatsoever"
)

SAID = words("said, claimed, insisted, thought, wrote, announced, believed, felt | maintained, argued")
AGREED = words("agreed, felt the same, said so too, confirmed it, thought so too, backed this up | concurred")
DISAGREED = words(
    "disagreed, felt otherwise, did not believe it, proved the opposite, thought the opposite, objected | begged to "
    "differ"
)
DISAGREE = words("disagree, see it differently, think the opposite, do not believe it | beg to differ")
DENIED = words("denied, doubted, disputed, refused to believe | contested")

OPENERS = words(
    "on Tuesday, last weekend, honestly, to be fair, in my experience, after two hours, in the end, during our "
    "stay, this time, back in March, at noon, for the record, on our first visit, as far as I know, once again | "
    "come to think of it"
)
CLOSERS = words(
    "on Friday night, during the holidays, after the long drive, in front of the guests, that evening, as usual, "
    "before we left, at the time, on the second day, for most of the week, with the kids around, in the afternoon | "
    "at dusk"
)
ASIDES = words(
    "which everyone talks about, which my parents chose, which was new to us, which we had heard of, which we shared "
    "| which the mayor recommended"
)
# Things mentioned in passing, without any judgement.
PASSING = words("after we saw, without a word about, before we got to, aside from, with no mention of | apart from")
