"""What a person sees: notes and progress on stderr, results on stdout. The only code that imports rich, and late.

On a terminal progress is a live bar; elsewhere (a log file, a pipe, TERM=dumb) it is one plain line every few seconds.
Text from outside (labels, file names, data) is shown as it is: no markup, control characters escaped.
"""

from compress.console.board import Board
from compress.console.console import Console
from compress.console.documents import collect_documents, finite
from compress.console.silence import silence_output

__all__ = ["Board", "Console", "collect_documents", "finite", "silence_output"]
