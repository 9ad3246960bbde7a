"""The ClientApp: each message of the server starts a process, which works in the organisation's folder."""

from flwr.app import Context  # pyright: ignore[reportMissingImports]
from flwr.app import Message as Letter  # pyright: ignore[reportMissingImports]
from flwr.clientapp import ClientApp  # pyright: ignore[reportMissingImports]

from shoal.islands.flower.parcels import order_of, pack, unpack
from shoal.islands.flower.settings import read_federation, read_organisation
from shoal.islands.flower.work import serve
from shoal.islands.messages import decode
from shoal.runs.cache import cache_compilations


def make_client_app() -> ClientApp:
    """The app of `shoal.islands.flower.client_app`."""
    app = ClientApp()

    @app.train()
    def train(letter: Letter, context: Context) -> Letter:
        cache_compilations()
        federation = read_federation(context.run_config)
        organisation = read_organisation(context.node_config)
        answer, order = decode(unpack(letter.content)), order_of(letter.content)
        return Letter(pack(serve(federation, organisation, answer, order)), reply_to=letter)

    return app
