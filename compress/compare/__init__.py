"""Many measured models side by side: from runs of the store and model folders to one table, one page, one choice."""
