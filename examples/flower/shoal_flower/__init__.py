"""An example of a federation: the app that Flower starts."""
