# The operator and the coordinator: one image, no compiler, no root, no pip.
#   docker build -t ghcr.io/ropeteam/ropeteam:0.1.0 .
# Every package comes by its hash. Reproducible from one base, named by its digest: --build-arg PYTHON_IMAGE=...@sha256:...
ARG PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm
ARG KUBECTL_IMAGE=registry.k8s.io/kubectl:v1.36.3

FROM ${PYTHON_IMAGE} AS build
# Behind a proxy with its own certificate: mount it, and name it here.
ARG PIP_CERT
WORKDIR /src
ENV PYTHONHASHSEED=0 PIP_NO_CACHE_DIR=1 PIP_QUIET=1 PIP_ONLY_BINARY=:all:
COPY requirements/build.txt requirements/operator.txt requirements/
RUN python3 -m venv /opt/build && /opt/build/bin/pip install --require-hashes -r requirements/build.txt
RUN python3 -m venv --without-pip /opt/ropeteam \
    && /opt/build/bin/pip --python /opt/ropeteam install --no-compile --require-hashes -r requirements/operator.txt
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY trainer-image/ropeteam_trainer trainer-image/ropeteam_trainer
# Bytecode names its source by hash: a time would differ in each build, and be wrong once file times are set. All of it
# again: pip has imported some. The local cluster is for the machines of users, in the stage `local`.
RUN rm -r operator/ropeteam/local \
    && /opt/build/bin/hatchling build -t wheel \
    && /opt/build/bin/pip --python /opt/ropeteam install --no-compile --no-deps --no-index dist/*.whl \
    && /opt/ropeteam/bin/python -m compileall -q -f --invalidation-mode unchecked-hash /opt/ropeteam/lib

FROM ${KUBECTL_IMAGE} AS kubectl

# Everything in one container, to try it where there is nothing but Docker: client, local cluster, torch, kubectl.
#   docker build --target local -t ropeteam-local .
FROM ${PYTHON_IMAGE} AS local
ARG PIP_CERT
ARG REQUIREMENTS=requirements/trainer.txt
# These two as in trainer-image/Dockerfile, word by word: torch is one layer then, downloaded and kept once.
COPY ${REQUIREMENTS} /opt/ropeteam/requirements.txt
RUN export PYTHONDONTWRITEBYTECODE=1 PYTHONHASHSEED=0 && cd /opt/ropeteam && python3 -m venv . \
    && bin/pip install --no-cache-dir --no-compile --quiet --require-hashes --only-binary :all: -r requirements.txt \
    && echo /opt/ropeteam/code > "$(bin/python -c 'import site; print(site.getsitepackages()[0])')/ropeteam.pth" \
    && bin/python -m compileall -q -f -x py312_ --invalidation-mode unchecked-hash lib
ENV PATH=/opt/ropeteam/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp ROPETEAM_HOME=/tmp/ropeteam KUBECONFIG=/tmp/ropeteam/kubeconfig
COPY requirements/build.txt requirements/operator.txt /opt/ropeteam/requirements/
RUN cd /opt/ropeteam/requirements \
    && pip install --no-cache-dir --quiet --require-hashes --only-binary :all: -r build.txt -r operator.txt
COPY --from=kubectl /bin/kubectl /usr/local/bin/kubectl
# As `make install` does it, in the folders of the repository: what the guides say to run is there.
WORKDIR /opt/ropeteam/code
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY trainer-image/ropeteam_trainer trainer-image/ropeteam_trainer
COPY examples examples
RUN pip install --quiet --no-deps --no-index --no-build-isolation --editable .
USER 65532:65532
CMD ["bash"]

FROM ${PYTHON_IMAGE}
COPY --from=build /opt/ropeteam /opt/ropeteam
ENV PATH=/opt/ropeteam/bin:$PATH PYTHONUNBUFFERED=1 ROPETEAM_HOME=/tmp/ropeteam
USER 65532:65532
WORKDIR /tmp
CMD ["python", "-m", "ropeteam.controller"]
