"""How good the answers are: metrics, intervals, paired tests, agreement. Arrays in, numbers out."""
