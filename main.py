"""What `uvicorn main:app` loads."""

import sys

from relay.config import load_settings
from relay.errors import StartupError
from relay.server.app import create_app

try:
    app = create_app(load_settings())
except StartupError as exc:
    print(f"relay: {exc}", file=sys.stderr)  # noqa: T201  # there is no log yet
    sys.exit(3)
