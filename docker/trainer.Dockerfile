# An example trainer: examples/train_ddp.py on two ranks, on the CPU.
#   docker build -f docker/trainer.Dockerfile -t gravac-trainer:0.1.0 .
ARG BASE=python:3.12.11-slim-bookworm
FROM ${BASE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
# For a network with a package index of its own, and a certificate authority (PEM) that signs for it.
ARG PIP_INDEX_URL=https://pypi.org/simple
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
ARG CA_CERTIFICATE=""
WORKDIR /build
RUN python -m venv /opt/gravac \
    && if [ -n "$CA_CERTIFICATE" ]; then \
    printf '%s\n' "$CA_CERTIFICATE" > /etc/ca.pem && /opt/gravac/bin/pip config --global set global.cert /etc/ca.pem; fi
COPY constraints.txt ./
RUN /opt/gravac/bin/pip install --constraint constraints.txt --index-url "$TORCH_INDEX_URL" torch
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY gravac gravac
COPY agent agent
COPY controller controller
COPY observe observe
RUN /opt/gravac/bin/pip install --constraint constraints.txt ".[cpu]"

FROM ${BASE}
LABEL org.opencontainers.image.title="gravac demo trainer" org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 gravac \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin gravac
COPY --from=build /opt/gravac /opt/gravac
COPY examples/train_ddp.py /app/train_ddp.py
COPY --chmod=755 docker/with-token.sh /app/with-token.sh
# Only /tmp is writable where the file system is read-only.
ENV PATH=/opt/gravac/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo \
    HOME=/tmp NUMBA_CACHE_DIR=/tmp/numba GRAVAC_DATA_DIR=/tmp/gravac-runs
USER 10001:10001
WORKDIR /tmp
ENTRYPOINT ["/app/with-token.sh"]
CMD ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", "/app/train_ddp.py", "--steps", "20000"]
