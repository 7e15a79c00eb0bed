# docker build -t pagermcp . && docker run -p 8080:8080 -v pages:/data pagermcp
FROM python:3.13-slim
COPY . /src
RUN pip install --no-cache-dir '/src[mcp]' && rm -r /src \
    && groupadd -g 10001 pagermcp && useradd -u 10001 -g 10001 -M -s /usr/sbin/nologin pagermcp \
    && install -d -o 10001 -g 10001 -m 0750 /data
ARG BUILD=source
ENV MODE=server HOST=0.0.0.0 PORT=8080 DATA_DIR=/data PAGERMCP_BUILD=$BUILD \
    PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["pagermcp"]
