# The controller, without torch: it decides, writes journals and serves the page. It handles no gradients.
#   docker build -f docker/controller.Dockerfile -t gravac-controller:0.1.0 .
ARG BASE=python:3.12.11-slim-bookworm
FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# For a network with a package index of its own, and a certificate authority (PEM) that signs for it.
ARG PIP_INDEX_URL=https://pypi.org/simple
ARG CA_CERTIFICATE=""
WORKDIR /build
RUN python -m venv /opt/gravac \
    && if [ -n "$CA_CERTIFICATE" ]; then \
    printf '%s\n' "$CA_CERTIFICATE" > /etc/ca.pem && /opt/gravac/bin/pip config --global set global.cert /etc/ca.pem; fi
COPY constraints.txt docker/controller-requirements.txt ./
RUN /opt/gravac/bin/pip install --constraint constraints.txt --requirement controller-requirements.txt
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY gravac gravac
COPY agent agent
COPY controller controller
COPY observe observe
RUN /opt/gravac/bin/pip install --no-deps .

FROM ${BASE}
LABEL org.opencontainers.image.title="gravac controller" org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 gravac \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin gravac \
    && install --directory --owner=10001 --group=10001 /data /run/gravac
COPY --from=build /opt/gravac /opt/gravac
ENV PATH=/opt/gravac/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 GRAVAC_CONTROLLER_DATA_DIR=/data
USER 10001:10001
WORKDIR /data
VOLUME ["/data"]
EXPOSE 8756
HEALTHCHECK --interval=5s --timeout=3s --start-period=20s --retries=3 \
    CMD ["python", "-c", "import http.client; c = http.client.HTTPConnection('127.0.0.1', 8756, timeout=2); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
ENTRYPOINT ["gravac", "serve"]
CMD ["--host", "0.0.0.0", "--token-file", "/run/gravac/token"]
