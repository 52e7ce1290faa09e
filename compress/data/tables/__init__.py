"""Checked columns: texts, labels, scores, answers, splits."""
