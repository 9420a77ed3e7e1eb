# The one image of all programs of Baton: docker build --tag baton:latest .
#
# The first stage has a compiler and installs the packages of requirements.lock, each checked against its hash. The hook
# binds old symbols of the C library by itself, so it loads in containers that are older than this base.

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

# Containers cannot write to their image. Byte code that is not there would be compiled anew at every start, also that of
# Python's own library, which the base comes without.
FROM python:3.11-slim-bookworm
COPY --from=build /opt/baton /opt/baton
RUN python -m compileall -q --invalidation-mode unchecked-hash -x '/(test|idlelib|lib2to3|tkinter|turtledemo)/' \
        /usr/local/lib/python3.11 /opt/baton/lib
ENV PATH=/opt/baton/bin:$PATH PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
ENTRYPOINT ["baton"]
