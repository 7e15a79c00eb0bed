"""A stand-in for the seed's Python clients: read /wait with urllib, parse it, again; after any failure wait a little.

python urllib_loop.py URL KEY COUNT prints COUNT pages, a line each."""

import http.client
import json
import sys
import time
import urllib.request

url, key, count = sys.argv[1:]
got = 0
while got < int(count):
    try:
        with urllib.request.urlopen(f"{url}/mailboxes/{key}/wait") as response:
            print(json.dumps(json.load(response)), flush=True)
        got += 1
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(error, file=sys.stderr)
        time.sleep(0.1)
