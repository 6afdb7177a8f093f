# The pipeline with its peers and Nsight Systems, for rented GPUs: see docs/clusters.md.
#
#   docker build -t llm-systems-pipeline .
#   docker run --rm --gpus all --ipc=host -v "$PWD/run:/run-here" llm-systems-pipeline
#
# The CUDA of torch's wheels in constraints.txt. They bring their own libraries; the base has the variables by which a
# container is given GPUs, and NVIDIA's package source.
FROM nvidia/cuda:13.0.2-runtime-ubuntu24.04

SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# Triton and torch.compile compile with gcc against Python's headers. Versions follow the base image's release.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl g++ gcc git make python3 python3-dev \
    && curl -fsSL -o /usr/share/keyrings/nvidia-devtools.asc \
        https://developer.download.nvidia.com/devtools/repos/ubuntu2404/amd64/nvidia.pub \
    && echo "deb [signed-by=/usr/share/keyrings/nvidia-devtools.asc] https://developer.download.nvidia.com/devtools/repos/ubuntu2404/amd64/ /" \
        >/etc/apt/sources.list.d/nvidia-devtools.list \
    && apt-get update \
    && apt-get install -y --no-install-recommends nsight-systems-cli \
    && rm -rf /var/lib/apt/lists/*
COPY --from=ghcr.io/astral-sh/uv:0.9.5 /uv /usr/local/bin/uv

WORKDIR /opt/pipeline
# With pip, which some services look for.
RUN uv venv --seed --python /usr/bin/python3 /opt/venv
ENV VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
COPY constraints.txt pyproject.toml README.md ./
COPY src src
COPY config config
COPY workflow workflow
RUN uv pip install --no-cache --prerelease=allow -c constraints.txt '.[peers]'

# Where the run leaves results and reports: mount a folder here.
WORKDIR /run-here
CMD ["python", "-m", "pipeline", "run", "--scale", "quick"]
