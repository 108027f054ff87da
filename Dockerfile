# One image for API and worker. Built from the pinned and hashed requirements; runs as an ordinary user.
FROM python:3.13-slim AS build
RUN pip install --no-cache-dir uv==0.13.9
WORKDIR /srv
COPY requirements/base.txt requirements/base.txt
RUN uv venv /opt/rondo && uv pip install --python /opt/rondo/bin/python --no-cache --require-hashes -r requirements/base.txt

FROM python:3.13-slim
RUN useradd --create-home --uid 10001 rondo
COPY --from=build /opt/rondo /opt/rondo
WORKDIR /srv
COPY app app
COPY migrations migrations
ENV PATH=/opt/rondo/bin:$PATH PYTHONPATH=/srv PYTHONUNBUFFERED=1 HOST=0.0.0.0 PORT=8080 RONDO_DATA_DIR=/home/rondo/data
USER rondo
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz', timeout=2)"]
ENTRYPOINT ["python", "-m", "app.cli"]
CMD ["serve"]
