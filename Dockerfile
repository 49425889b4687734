# syntax=docker/dockerfile:1.17@sha256:38387523653efa0039f8e1c89bb74a30504e76ee9f565e25c9a09841f9427b05
#
# The sidecar:                     docker build --tag retry-sidecar .
# The sidecar with Spark:          docker build --tag retry-sidecar-spark --target spark .
# The software bill of materials:  docker build --target sbom --output type=local,dest=dist .
# Reproducible from the same sources and base image:
#   docker buildx build --build-arg SOURCE_DATE_EPOCH="$(git log -1 --format=%ct)" \
#     --output type=oci,dest=retry-sidecar.tar,rewrite-timestamp=true .

# glibc: confluent-kafka and rocksdict have no wheels for musl.
ARG BASE=python:3.13-slim-trixie@sha256:9d2e5553305c7c7b0097999bb17187c69b921ccd6bc9d40e4bb5ebe652c00285

# --- Build the wheels from the lock files. A dependency without a wheel, or with another hash, fails here.
# hadolint ignore=DL3006
FROM ${BASE} AS wheels
ARG SOURCE_DATE_EPOCH
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY requirements/image.lock requirements/
RUN python3 -m venv /build \
    && /build/bin/pip wheel --require-hashes --no-deps --only-binary=:all: --wheel-dir /wheels \
        --requirement requirements/image.lock \
    && /build/bin/pip install --no-index --find-links=/wheels hatchling cython setuptools
# The compiler of the hot path. Its version is that of the base image's release.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY sidecar sidecar
COPY clients/python/retry_sidecar clients/python/retry_sidecar
RUN SIDECAR_HOT=require /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && python3 -m venv --without-pip /opt/retry-sidecar \
    && /build/bin/pip --python /opt/retry-sidecar/bin/python install --no-index --find-links=/wheels --no-compile \
        "retry-sidecar[otel]" \
    && /opt/retry-sidecar/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/retry-sidecar/lib

# --- Add Spark. PySpark has no wheel, so this stage builds one.
FROM wheels AS spark-wheels
COPY requirements/spark-build.lock requirements/image-spark.lock requirements/
RUN /build/bin/pip install --require-hashes --only-binary=:all: --requirement requirements/spark-build.lock \
    && /build/bin/pip wheel --require-hashes --no-deps --no-build-isolation --only-binary=:all: --no-binary=pyspark \
        --wheel-dir /wheels --requirement requirements/image-spark.lock \
    && /build/bin/pip --python /opt/retry-sidecar/bin/python install --no-index --find-links=/wheels --no-compile \
        "retry-sidecar[otel,spark]" \
    && /opt/retry-sidecar/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/retry-sidecar/lib

# --- List the contents for scanners.
FROM wheels AS inventory
COPY requirements/sbom.lock requirements/
RUN python3 -m venv /sbom \
    && /sbom/bin/pip install --require-hashes --only-binary=:all: --requirement requirements/sbom.lock \
    && /sbom/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
        --output-file /retry-sidecar.cdx.json /opt/retry-sidecar/bin/python
FROM spark-wheels AS spark-inventory
COPY --from=inventory /sbom /sbom
RUN /sbom/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
        --output-file /retry-sidecar.cdx.json /opt/retry-sidecar/bin/python
FROM scratch AS sbom
COPY --from=inventory /retry-sidecar.cdx.json /

# --- The common base of both images.
# hadolint ignore=DL3006
FROM ${BASE} AS base
# tini runs as process 1, which ignores signals that it has no handler for. Python takes a second to install its handlers;
# without tini, stopping the container in that second would hang until it is killed. tini also reaps Spark's workers.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini=0.19.* \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/aux-cache /var/log/apt /var/log/*.log \
    && groupadd --gid 10001 retry-sidecar \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/retry-sidecar --shell /usr/sbin/nologin \
        retry-sidecar \
    && install --directory --owner=10001 --group=10001 --mode=0770 /var/lib/retry-sidecar \
    && install --directory /etc/retry-sidecar/config \
    && echo "# Mount a file of settings here: every command reads it." > /etc/retry-sidecar/config/config.yaml
ENV PATH=/opt/retry-sidecar/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    KAFKA_RETRY_CONFIG=/etc/retry-sidecar/config/config.yaml \
    KAFKA_RETRY_HTTP_HOST=0.0.0.0 \
    KAFKA_RETRY_STATE_DIR=/var/lib/retry-sidecar
LABEL org.opencontainers.image.title="retry-sidecar" \
      org.opencontainers.image.description="Delivers each message on a shared Kafka retry topic back to its origin topic when it is due." \
      org.opencontainers.image.licenses="Apache-2.0"
ARG VERSION=0.1.0
ARG REVISION=""
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
WORKDIR /var/lib/retry-sidecar
VOLUME ["/var/lib/retry-sidecar"]
EXPOSE 8080
STOPSIGNAL SIGTERM
# Checks liveness, not readiness: a restart does not bring back an unreachable broker.
HEALTHCHECK --interval=30s --timeout=6s --start-period=30s --retries=3 CMD ["retry-sidecar", "health"]
ENTRYPOINT ["tini", "-s", "--", "retry-sidecar"]
CMD ["run"]

# --- With the Spark engine.
FROM base AS spark
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-21-jre-headless=21.* \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/ldconfig/aux-cache /var/log/apt /var/log/*.log
COPY --from=spark-wheels /opt/retry-sidecar /opt/retry-sidecar
COPY --from=spark-inventory /retry-sidecar.cdx.json /usr/share/sbom/
COPY deploy/image/spark-entrypoint.sh deploy/image/spark_app.py /opt/retry-sidecar/
# Kubernetes mounts Spark's configuration at /opt/spark/conf.
RUN pyspark="$(python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')" \
    && mkdir --parents /opt/spark/conf \
    && ln --symbolic "$pyspark/bin" "$pyspark/jars" "$pyspark/python" "$pyspark/sbin" /opt/spark/
ENV SPARK_HOME=/opt/spark \
    SPARK_LOCAL_DIRS=/tmp \
    PYSPARK_PYTHON=/opt/retry-sidecar/bin/python
# Serves Spark's pods on Kubernetes too: `driver` and `executor` as first arguments.
ENTRYPOINT ["tini", "-s", "--", "/opt/retry-sidecar/spark-entrypoint.sh"]
CMD ["spark", "run", "--checkpoint", "file:///var/lib/retry-sidecar/checkpoint"]
USER 10001:10001

# --- The sidecar. Docker builds the last stage by default.
FROM base AS sidecar
COPY --from=wheels /opt/retry-sidecar /opt/retry-sidecar
COPY --from=inventory /retry-sidecar.cdx.json /usr/share/sbom/
USER 10001:10001
