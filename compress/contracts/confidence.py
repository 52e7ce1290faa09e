"""How sure a bound that is proven on rows may have to be, in percent. Imports nothing heavy: recipes state it."""

from __future__ import annotations

CONFIDENCE = 90.0
"""Where nobody says how sure."""
LEAST, MOST = 50.0, 99.8
"""What may be given; the most is `evaluation.quality.exact_pairs.MOST_CONFIDENCE`."""
