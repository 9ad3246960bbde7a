"""The live page: a server that reads the folders of runs, and the page it sends."""
