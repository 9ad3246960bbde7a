"""What runs at each organisation; environments of its own are imported by its node's configuration."""

from shoal.islands.flower import client_app

app = client_app()
