"""What `uvicorn main:app` loads."""

import sys

from relay.environment import load_settings, requested_workers
from relay.errors import StartupError
from relay.server.run import create_lasting_app, refuse_several_processes

try:
    settings = load_settings()
    refuse_several_processes(settings, requested_workers(sys.argv))
    app = create_lasting_app(settings)
except StartupError as exc:
    print(f"relay: {exc}", file=sys.stderr)  # noqa: T201  # there is no log yet
    sys.exit(3)
