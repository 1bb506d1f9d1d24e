# The operator and the coordinator: one image, no compiler, no root.
#   docker build -t ghcr.io/ropeteam/ropeteam:0.1.0 .
# For a release pin the base: --build-arg PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:...
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# Behind a proxy with its own certificate: mount it, and name it here.
ARG SSL_CERT_FILE
WORKDIR /src
ENV UV_PROJECT_ENVIRONMENT=/opt/ropeteam UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir --quiet uv
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN /opt/uv/bin/uv sync --quiet --no-cache --locked --no-install-project --extra operator
COPY operator operator
COPY trainer-image/ropeteam_trainer trainer-image/ropeteam_trainer
RUN /opt/uv/bin/uv sync --quiet --no-cache --locked --no-editable --extra operator

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/ropeteam /opt/ropeteam
ENV PATH=/opt/ropeteam/bin:$PATH PYTHONUNBUFFERED=1 ROPETEAM_HOME=/tmp/ropeteam
USER 65532:65532
WORKDIR /tmp
CMD ["python", "-m", "ropeteam.controller"]
