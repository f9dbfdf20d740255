# For a host with an NVIDIA GPU and the container toolkit:
#   docker build -t bisect-trt .
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" -v "$PWD:/data" bisect-trt diagnose model.onnx --onnxrt --fp16
# CUDA 13, because onnxruntime-gpu links CUDA 13's libraries from 1.31 on.
FROM nvidia/cuda:13.0.2-cudnn-runtime-ubuntu24.04

# The distribution's Python, whichever it has.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

# Which version this is, such as 0.1.0, because git and its tags stay outside.
ARG VERSION=""
COPY pyproject.toml README.md LICENSE /src/
COPY bisect_trt /src/bisect_trt
RUN python3 -m venv /opt/bisect-trt \
    && SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION" /opt/bisect-trt/bin/pip install --no-cache-dir "/src[gpu,tensorrt]" "onnxruntime-gpu>=1.31"

# Not root: without --user it runs as 10001, which may not write into a folder of yours. HOME holds caches of any user.
RUN useradd --create-home --uid 10001 bisect
USER 10001
WORKDIR /data
ENV PATH=/opt/bisect-trt/bin:$PATH HOME=/tmp
ENTRYPOINT ["bisect-trt"]
CMD ["--help"]
