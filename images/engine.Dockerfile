# The engine's image. Nothing is fetched while it is built: the build context holds the wheels.
#
#   wheels/   wheels of octavo[engine]'s dependencies (torch, triton, …), for the base image's Python
#   octavo/   the wheel of octavo itself
#
# The base image needs Python 3.11 or newer with pip, and a C compiler for Triton's launchers. CUDA's
# libraries come with torch's wheels; the driver's come from the node.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}

# Dependencies change seldom, our own wheel with every commit: a layer of gigabytes that stays, and one
# of a megabyte. The wheels are mounted, not copied: a layer of theirs would double what is stored. pip
# compiles to bytecode: compiling torch and transformers costs a replica 5 s of each start.
RUN --mount=type=bind,source=wheels,target=/wheels \
    python3 -m venv --without-pip /opt/octavo \
    && python3 -m pip --python /opt/octavo/bin/python install \
       --no-cache-dir --no-index --no-deps /wheels/*.whl
RUN --mount=type=bind,source=octavo,target=/octavo \
    python3 -m pip --python /opt/octavo/bin/python install \
    --no-cache-dir --no-index --no-deps /octavo/*.whl \
    && /opt/octavo/bin/octavo --help > /dev/null

# The root filesystem is read-only in a pod: what libraries cache goes to its /tmp.
ENV PATH=/opt/octavo/bin:$PATH HOME=/tmp TRITON_CACHE_DIR=/tmp/triton PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
ENTRYPOINT ["/opt/octavo/bin/octavo"]
