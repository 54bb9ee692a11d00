# One image for every process: worker roles, migrations, command line, simulators.
# PostgreSQL and Temporal run elsewhere, so the `embedded` extra is not in it.

FROM python:3.12-slim AS packages
COPY requirements-prod.lock .
RUN python -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements-prod.lock

FROM python:3.12-slim
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# /data is for the simulators' ledgers: a named volume mounted there takes over its owner.
RUN groupadd --system --gid 10001 app \
    && useradd --system --uid 10001 --gid app --no-create-home --shell /usr/sbin/nologin app \
    && install -d -o app -g app /data
COPY --from=packages /opt/venv /opt/venv
WORKDIR /app
COPY worker.py starter.py pyproject.toml LICENSE ./
COPY domain/ domain/
COPY store/ store/
COPY activities/ activities/
COPY definitions/ definitions/
COPY workflows/ workflows/
COPY supervisor/ supervisor/
COPY audit/ audit/
COPY runtime/ runtime/
COPY operators/ operators/
COPY cli/ cli/
COPY devstack/ devstack/
COPY examples/ examples/
# A number: Kubernetes' runAsNonRoot can't tell whether a name is root's.
USER 10001:10001
ENTRYPOINT ["python"]
CMD ["worker.py"]
