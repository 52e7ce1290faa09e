"""The sentence frames: how meaning is composed. A frame is a line of words and slots.

`+` and `-` are clauses that, taken at face value, say the same as the whole or its opposite. `c+` and `c-` are closed
ones: nothing in them could be read as going on with the sentence around them, so that every sentence has one reading.
`a+` is a judgement without nesting, `n-` one in the form of a noun ("the bland soup"). In a plain judgement `<adj>`
and the like carry its own sign, `<adj->` the opposite one (the words that a negation turns around). So the sign of the
whole is known by construction. `>` marks the clause that decides; what it judges is what the sentence is about.
"""

from __future__ import annotations

# A plain judgement. <it> is "the soup"; <deg> an optional degree word; <soft> an optional softener of a negation.
PLAIN = (
    "<it> was <deg> <adj>",
    "<it> was <deg> <adj>",
    "<it> was <deg> <adj>",
    "<it> turned out <deg> <adj>",
    "<it> seemed <deg> <adj>",
    "I found <it> <deg> <adj>",
    "we thought <it> was <deg> <adj>",
    "everybody called <it> <deg> <adj>",
    "<it> <pleased> us",
    "<it> <pleased> <who>",
    "we <liked> <it>",
    "<who> <liked> <it>",
)

# A plain judgement turned around: the opinion word says the opposite of the clause.
NEGATED = (
    "<it> was not <soft> <adj->",
    "<it> was not <soft> <adj->",
    "<it> was never <soft> <adj->",
    "<it> did not seem <soft> <adj->",
    "<it> was anything but <adj->",
    "<it> was far from <adj->",
    "nothing about <it> was <soft> <adj->",
    "nobody found <it> <soft> <adj->",
    "we could not call <it> <adj->",
    "<it> did not <please-> us at all",
    "we did not <like-> <it> at all",
)

# Two clauses that pull in opposite directions: the sentence comes down on one of them.
CONTRAST = (
    "although c- , >+",
    "although c- , >+",
    "even though c- , >+",
    "while c- , >+",
    "despite n- , >+",
    "- , but >+",
    "- , but >+",
    "- , yet >+",
    "- ; still , >+",
    ">+ , although c-",
    ">+ , even though c-",
    ">+ , even if c-",
)

# Two clauses that pull in the same direction.
ACCORD = (
    "+ , and >+",
    ">+ because a+",
    "+ , so >+",
    "+ ; what is more , >+",
)

# Who said what, and whether it stands: the last word counts.
REPORT_TURNED = (
    "<who> <said> that - , but <who2> <disagreed>",
    "<who> <said> that - , but <who2> <disagreed>",
    "“ - , ” <said> <who> , but <who2> <disagreed>",
    "according to <who> , - , but I <disagree>",
)
REPORT_KEPT = (
    "<who> <said> that + , and <who2> <agreed>",
    "“ + , ” <said> <who> , and <who2> <agreed>",
    "according to <who> , + , and I agree",
)

# The same from the front: the sentence says at once whether the claim stands. These are closed.
CLAIM_TURNED = (
    "<who> was wrong to say that c-",
    "<who> <denied> that c-",
    "it is simply not true that c-",
)
CLAIM_KEPT = (
    "<who> was right to say that c+",
    "<who> <said> that c+",
    "it is quite true that c+",
)

# How a document opens (without judging) and how it sums up.
OPENINGS = (
    "Here is what happened at the <place>.",
    "We spent a whole day at the <place>.",
    "This is about the <place> near the station.",
    "A few words on the <place> in our street.",
    "My family went to the <place> last month.",
    "Last week I visited the <place> for the first time.",
)
VERDICTS = {
    1: (
        "All in all, we loved the <place>.",
        "In short, I would gladly come back.",
        "We recommend the <place> to everybody.",
        "On the whole, it was a great <place>.",
        "Five stars from us.",
        "To sum up, the <place> was a pleasure.",
    ),
    -1: (
        "All in all, we hated the <place>.",
        "In short, I would never come back.",
        "We warn everybody about the <place>.",
        "On the whole, it was a terrible <place>.",
        "One star from us.",
        "To sum up, the <place> was a mistake.",
    ),
}
