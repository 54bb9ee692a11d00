# One image for every process: worker roles, migrations, command line, simulators.
# PostgreSQL and Temporal run elsewhere, so the `embedded` extra is not in it.

FROM python:3.12-slim AS packages
COPY requirements-prod.lock .
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements-prod.lock

FROM python:3.12-slim
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# /data is for the simulators' ledgers: a named volume mounted there takes over its owner.
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin app \
    && install -d -o app -g app /data
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY worker.py starter.py ./
COPY domain/ domain/
COPY store/ store/
COPY activities/ activities/
COPY pipelines/ pipelines/
COPY workflows/ workflows/
COPY supervisor/ supervisor/
COPY audit/ audit/
COPY runtime/ runtime/
COPY cli/ cli/
COPY simulators/ simulators/
COPY examples/ examples/
USER app
ENTRYPOINT ["python"]
CMD ["worker.py"]
