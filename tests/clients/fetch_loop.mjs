// A stand-in for the seed's JavaScript clients: fetch /wait, .json() it, again; after any failure wait a little.
// node fetch_loop.mjs URL KEY COUNT prints COUNT pages, a line each.
const [url, key, count] = process.argv.slice(2);

for (let got = 0; got < Number(count); ) {
  try {
    const response = await fetch(`${url}/mailboxes/${key}/wait`);
    if (!response.ok) throw new Error(`status ${response.status}`);
    console.log(JSON.stringify(await response.json()));
    got += 1;
  } catch (error) {
    console.error(String(error));
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}
