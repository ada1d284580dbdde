# Relay in a container; .env holds the tokens (docs/deploy.md):
#   docker build --tag relay . && docker run --env-file .env --publish 127.0.0.1:8000:8000 relay
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS build
WORKDIR /build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/venv
# The locked packages first: this layer is made anew only when the lock changes.
COPY requirements/run.txt requirements/
RUN /opt/venv/bin/pip install --require-hashes --requirement requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/venv/bin/pip install --no-deps --no-build-isolation .

FROM ${PYTHON}
LABEL org.opencontainers.image.title="Relay" \
      org.opencontainers.image.description="Talk from a phone or a web page to an AI agent on your own laptop." \
      org.opencontainers.image.licenses="MIT"
COPY --from=build /opt/venv /opt/venv
# For a SQLite file: --env RELAY_STORE_URL=sqlite:////data/relay.db --volume relay:/data
RUN mkdir /data && chown 10001:10001 /data
VOLUME /data
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# The same choice of port as the server's own. No proxy: a container may have been handed one.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as web; port = os.getenv('RELAY_PORT') or os.getenv('PORT') or 8000; web.build_opener(web.ProxyHandler({})).open(f'http://127.0.0.1:{port}/healthz', timeout=4)"]
ENTRYPOINT ["relay"]
# All addresses of the container: it does not start without tokens. It speaks plain HTTP: publish it on 127.0.0.1, with
# a proxy for TLS in front.
CMD ["serve", "--host", "0.0.0.0"]
