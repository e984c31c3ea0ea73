# The operator's image. Nothing is fetched while it is built: the build context holds the wheels.
#
#   wheels/   wheels of octavo[operator]'s dependencies, for the base image's Python
#   octavo/   the wheel of octavo itself
#
# Works with `docker build` and with `buildah bud --isolation chroot`. The base image needs Python 3.11
# or newer with pip. It may be any: BASE_IMAGE=python:3.13-slim, a Debian root made locally, …
ARG BASE_IMAGE
FROM ${BASE_IMAGE} AS build

# Dependencies change seldom, our own wheel with every commit: two layers.
COPY wheels /wheels
RUN python3 -m venv --without-pip /opt/octavo \
    && python3 -m pip --python /opt/octavo/bin/python install \
       --no-cache-dir --no-index --no-deps --no-compile /wheels/*.whl \
    && /opt/octavo/bin/python -m compileall -q -j 2 /opt/octavo/lib
COPY octavo /octavo
RUN python3 -m pip --python /opt/octavo/bin/python install \
    --no-cache-dir --no-index --no-deps --no-compile /octavo/*.whl \
    && /opt/octavo/bin/python -m compileall -q -j 2 /opt/octavo/lib \
    && /opt/octavo/bin/octavo-operator --help > /dev/null

FROM ${BASE_IMAGE}
COPY --from=build /opt/octavo /opt/octavo
# kopf looks up who it runs as, and this user is in no passwd file.
ENV PATH=/opt/octavo/bin:$PATH LOGNAME=octavo PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 65532:65532
ENTRYPOINT ["/opt/octavo/bin/octavo-operator"]
