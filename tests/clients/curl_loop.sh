#!/bin/sh
# A stand-in for shell clients: curl /wait, again; after any failure wait a little.
# sh curl_loop.sh URL KEY COUNT prints COUNT pages, a line each.
url=$1 key=$2 count=$3
while [ "$count" -gt 0 ]; do
    if page=$(curl -fsS "$url/mailboxes/$key/wait"); then
        printf '%s\n' "$page"
        count=$((count - 1))
    else
        sleep 0.1
    fi
done
