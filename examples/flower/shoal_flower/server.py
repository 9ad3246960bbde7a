"""The server of the federation."""

from shoal.islands.flower import server_app

app = server_app()
