"""A model as a folder that a browser runs: its files for transformers.js, and a page that answers with them."""
