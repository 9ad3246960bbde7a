# docker build -t shoal-box .                                        for a CPU
# docker build -t shoal-box --build-arg JAX='jax[cuda13]' .          for an NVIDIA GPU
# docker run --rm -v "$PWD/runs:/work/runs" shoal-box train CartPole-v1

FROM python:3.12-slim
ARG JAX=jax
COPY pyproject.toml README.md LICENSE /src/
COPY shoal /src/shoal
RUN pip install --no-cache-dir /src "$JAX"
# Any user may run it: what is not in runs/ goes to /tmp.
ENV HOME=/tmp
WORKDIR /work
ENTRYPOINT ["shoal"]
