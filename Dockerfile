# docker build -t pagermcp .        How to run it: docs/operate.md, "Container"
FROM python:3.13-slim AS build
COPY . /src
RUN python -m venv --without-pip /opt/pagermcp \
    && pip --python /opt/pagermcp/bin/python install --no-cache-dir --disable-pip-version-check '/src[mcp]'

FROM python:3.13-slim
RUN groupadd -g 10001 pagermcp && useradd -u 10001 -g 10001 -M -s /usr/sbin/nologin pagermcp \
    # for any --user: whoever serves first makes a spool in it that is its own
    && install -d -o 10001 -g 10001 -m 1707 /data
COPY --from=build /opt/pagermcp /opt/pagermcp
COPY deploy/entrypoint /usr/local/bin/pagermcp-entrypoint
COPY deploy/healthcheck.py /usr/local/bin/pagermcp-healthcheck
ARG BUILD=source
ENV PATH=/opt/pagermcp/bin:$PATH MODE=server HOST=0.0.0.0 PORT=8080 DATA_DIR=/data PAGERMCP_BUILD=$BUILD \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --start-period=30s --timeout=5s CMD ["python", "-I", "/usr/local/bin/pagermcp-healthcheck"]
ENTRYPOINT ["pagermcp-entrypoint"]
