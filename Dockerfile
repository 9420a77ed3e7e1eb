# The image for all of Baton's programs: docker build --tag baton:latest .
#
# The first stage contains a compiler and installs the packages of requirements.lock, checking each against its hash. The
# hook binds to old symbol versions of the C library, so it also loads in containers older than this base image.

FROM python:3.11-slim-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev
RUN pip install --no-cache-dir --root-user-action=ignore uv==0.13.7
WORKDIR /source
COPY pyproject.toml hatch_build.py requirements.lock README.md LICENSE CHANGELOG.md ./
COPY native native
COPY src src
RUN python -m venv --without-pip /opt/baton && \
    uv pip install --no-cache --python /opt/baton/bin/python --constraint requirements.lock \
        --build-constraint requirements.lock '.[certs,node,uvloop]'

# Containers cannot write to their image, so missing byte code would be compiled at every start. That includes Python's
# standard library, which the base image ships without byte code.
FROM python:3.11-slim-bookworm
COPY --from=build /opt/baton /opt/baton
RUN python -m compileall -q --invalidation-mode unchecked-hash -x '/(test|idlelib|lib2to3|tkinter|turtledemo)/' \
        /usr/local/lib/python3.11 /opt/baton/lib
ENV PATH=/opt/baton/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["baton"]
