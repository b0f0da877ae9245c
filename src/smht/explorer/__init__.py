"""A page that shows what a model does with a text: in a browser on this machine, or as one file."""
