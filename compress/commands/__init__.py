"""Commands that read no recipe: measuring, answering, exporting and registering model folders."""
